"""Grade a JSONL file of completions of any origin: write the same rows with grades.

Columns are recognised by their usual names. A row without a grade is written with the reason, so
that output and input have the same number of rows.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lib.artifacts import JsonLine, json_lines, parse_json, read_records, write_jsonl
from lib.core.errors import UserError
from lib.prompts import PROMPT_FORMATS, PromptFormat
from lib.rewards.functions import rewards_of
from lib.rewards.grading import Grading
from lib.stats import clustered_mean, share_interval

COLUMN_NAMES = {
    "completion": "completion response output generation generated_text model_output text resps "
    "choices outputs",
    "answer": "pred prediction predicted_answer extracted_answer",
    "reference": "reference gold ground_truth target expected expected_answer answer",
    "problem": "problem question query input prompt",
    "label": "answer_ok label equal correct is_correct exact_match",
    "id": "problem_id custom_id id question_id example_id doc_id",
}
"""Our name of a column → its usual names, tried in this order. `answer` is a bare answer that other
code has extracted."""

VERDICT = ("grade", "error")
"""Columns of the output. Input columns of these names are dropped: another grader wrote them."""

# Label in lower case → right or not. "1.0", from a column of floats, is looked up as "1".
LABELS = {"true": True, "right": True, "1": True, "false": False, "wrong": False, "0": False}


def grade_external(
    source: Path,
    out: Path,
    *,
    references: Path | None = None,
    prompt_format: PromptFormat | None = None,
    math_verify: bool = False,
) -> Iterator[str]:
    """Grade every row of `source`, write it with its grade to `out`, return a summary.

    Args:
        source: a JSONL file, or one JSON array of objects.
        references: rows with references and problems, which count before those of `source`. They
            are paired by id, or by row number if neither file has ids.
        prompt_format: format of the completions: answers are read between its marks, and grades get
            `format_ok`. None reads answers in any layout.
        math_verify: also grade by the stack `math_verify`, for comparison.

    Returns:
        Lines: how rows were paired if not by id, the bad rows, the numbers of problems and bad
        rows, each rate with its interval over problems and, if rows have labels, each grader's
        agreement with them; with `math_verify`, the lines on which the graders disagree.

    Raises:
        UserError: no row of `source` can be graded, or the references cannot be paired.
    """
    # `boxed` has no marks: answers of any layout are extracted by the verifier's rules.
    grading = Grading(
        rewards_of("math_verify") if math_verify else (),
        prompt_format=prompt_format or PROMPT_FORMATS["boxed"],
    )
    lines = _rows(source)
    # Line number → row of `references`; and the summary's first lines.
    reference_rows, notes = _paired_references(references, lines) if references else ({}, [])
    notes += _differing_references(lines, reference_rows)
    results = {
        line.number: _grade_or_error(
            line,
            grading,
            reference_rows.get(line.number, {}),
            with_format=prompt_format is not None,
            remedy="" if references else "; or give a file of them: --references FILE",
        )
        for line in lines
    }
    errors = {number: each["error"] for number, each in results.items() if "error" in each}
    grades = {number: each["grade"] for number, each in results.items() if "grade" in each}
    # Nothing is written where nothing was graded: `out` may hold the result of an earlier run.
    if not grades:
        first = next(iter(errors.values()), "it is empty")
        raise UserError(f"{source}: no row can be graded; the first: {first}")
    write_jsonl(out, ({**_input_columns(line), **results[line.number]} for line in lines))
    rates = ["right", *["format_ok"] * bool(prompt_format)]
    rates += [reward.__name__ for reward in grading.rewards]
    return itertools.chain(notes, _summary(grades, errors, rates))


def _rows(source: Path) -> list[JsonLine]:
    lines = list(json_lines(source))
    if lines and lines[0].text.startswith("["):
        with suppress(ValueError):
            rows = parse_json(source.read_bytes())
            if rows and all(isinstance(row, dict) for row in rows):
                return [JsonLine(n, json.dumps(row), row, None) for n, row in enumerate(rows, 1)]
    return lines


def _summary(
    grades: Mapping[int, Mapping[str, Any]], errors: Mapping[int, str], rates: Sequence[str]
) -> Iterator[str]:
    """Yield the summary's lines: each bad row, the counts, then each rate with its interval.

    Example: "right 0.4000 [0.2800, 0.5300]". If rows have labels, a rate is followed by its
    agreement with them. With `graders_disagree` among `rates`, the last line lists the rows on
    which equal text, verifier and math-verify do not all agree.

    Args:
        grades: line number → grade, as `_grade_or_error` returns it.
        errors: line number → reason why the row has no grade.
        rates: keys of a grade; each has a number from 0 to 1, or a bool.
    """
    for number, error in errors.items():
        yield f"line {number}: {error}"
    problems = [grade["problem"] for grade in grades.values()]
    yield f"graded {len(set(problems))} problems"
    yield f"bad rows {len(errors)}"
    for name in rates:
        values = [grade[name] for grade in grades.values()]
        estimate = clustered_mean(values, problems)
        interval = share_interval(estimate)
        # A single problem has no spread over problems, from which to compute an interval.
        interval_text = f" [{interval.low:.4f}, {interval.high:.4f}]" if estimate.n > 1 else ""
        yield f"{name} {estimate.value:.4f}{interval_text}"
        if name not in ("format_ok", "graders_disagree"):
            yield from _agreement(name, grades.values())
    # A reward of the stack `math_verify`: 1 unless its three graders give the same value.
    if "graders_disagree" in rates:
        numbers = [str(number) for number, grade in grades.items() if grade["graders_disagree"]]
        yield f"graders disagree on lines {', '.join(numbers) or 'none'}"


def _agreement(name: str, grades: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield one line with a grader's agreement with the labels; nothing if no row has a label.

    Args:
        name: key of the grader's result in a grade; the label is True, False or None (missing).
    """
    # Confusion matrix: (label, graded as right) → number of rows.
    counts = Counter((grade["label"], bool(grade[name])) for grade in grades)
    right = counts[True, True] + counts[True, False]
    wrong = counts[False, True] + counts[False, False]
    if right or wrong:
        yield (
            f"{name}: labelled right {right}: graded right {counts[True, True]}, wrong "
            f"{counts[True, False]}; labelled wrong {wrong}: graded right "
            f"{counts[False, True]}, wrong {counts[False, False]}"
        )


def _input_columns(line: JsonLine) -> dict[str, Any]:
    if not isinstance(line.value, dict):
        return {"line": line.text}
    return {key: value for key, value in line.value.items() if key not in VERDICT}


def _grade_or_error(
    line: JsonLine,
    grading: Grading,
    reference_row: Mapping[str, Any],
    *,
    with_format: bool,
    remedy: str,
) -> dict[str, Any]:
    """Grade one line as `{"grade": {"right": True, …}}`, or as `{"error": reason}`.

    Args:
        reference_row: row whose reference and problem count before the line's own; may be empty.
        with_format: add `format_ok` to the grade.
        remedy: end of the message for a row without a reference.
    """
    if line.fault:
        return {"error": f"not JSON: {line.fault}"}
    row = line.value
    if not isinstance(row, dict):
        return {"error": f"expected an object, got {type(row).__name__}"}
    # lm-eval's `--log_samples` keeps the benchmark's own columns below `doc`.
    doc = row["doc"] if isinstance(row.get("doc"), dict) else {}
    text = single_text(column_value("completion", row))
    answer = _single_value(column_value("answer", row))
    if text is None and answer is None:
        return {"error": f"expected one completion in one of {COLUMN_NAMES['completion']}"}
    # The first value counts: in the references' file, then in the row, then in its `doc`.
    problem = single_text(column_value("problem", reference_row, row, doc))
    reference = reference_of(reference_row, row, doc)
    if not reference:
        return {"error": f"expected one reference in one of {COLUMN_NAMES['reference']}{remedy}"}
    # A completion is preferred to a bare answer: our extraction is the same for all models.
    rollout = grading.rollout(
        str(answer) if text is None else text,
        reference=reference,
        problem=problem,
        is_answer=text is None,
    )
    grading.score([rollout])
    # The first of these that exists names the cluster of the standard error. The text first: an id
    # may be that of a row or a request, and lm-eval counts `doc_id` anew in each task.
    problem_keys = [problem, column_value("id", row), reference]
    grade = {
        "right": rollout.answer_ok,
        "answer": rollout.answer,
        "reason": rollout.verdict.decided_by,
        # True, False, or None without a known label; 1.0 is looked up as "1".
        "label": LABELS.get(str(column_value("label", row)).lower().removesuffix(".0")),
        "problem": next(str(key) for key in problem_keys if key not in (None, "")),
    }
    if with_format:
        grade["format_ok"] = rollout.format_ok
    return {"grade": grade | grading.by_name(rollout)}


def _paired_references(
    path: Path, lines: Sequence[JsonLine]
) -> tuple[Mapping[int, Mapping[str, Any]], list[str]]:
    """Pair completions with references by id, or by order if neither file has ids.

    Returns:
        Line number of a completion → its reference row, and notes for the summary: that rows were
        paired by order, or which ids are missing or repeated.

    Raises:
        UserError: some reference rows have no id, or two have the same.
    """
    remedy = "one reference a line, with an `id` as in the completions"
    references = list(read_records(path, dict, what="a row", remedy=remedy))
    reference_ids = [column_value("id", row) for row in references]
    wanted_ids = {line.number: column_value("id", _input_columns(line)) for line in lines}
    # By order only if no row of either file has an id; otherwise a shifted row would go unnoticed.
    no_ids = all(each is None for each in (*reference_ids, *wanted_ids.values()))
    if no_ids and len(references) == len(lines):
        by_order = dict(zip(wanted_ids, references, strict=True))
        return by_order, [f"neither file has ids: {len(lines)} pairs, row by row"]
    if unnamed := reference_ids.count(None):
        raise UserError(
            f"{path}: {unnamed} rows without an id, for {len(lines)} completions; expected an id "
            "in each, or as many rows as completions and no id in either file"
        )
    # Id → index in `references`. Ids are compared as text: one file may write the id 7 as a number,
    # the other as "7".
    index_of: dict[str, int] = {}
    for index, name in enumerate(map(str, reference_ids)):
        if name in index_of:
            raise UserError(
                f"{path}: row {index + 1} has the id {name} of row {index_of[name] + 1}; expected "
                "one reference for each id"
            )
        index_of[name] = index
    # A completion without an id, or with an unknown one, gets no reference.
    ids = {number: str(name) for number, name in wanted_ids.items() if str(name) in index_of}
    pairs = {number: references[index_of[name]] for number, name in ids.items()}
    notes = []
    counts = Counter(ids.values())
    if missing := [name for name in index_of if name not in counts]:
        notes.append(
            f"{len(missing)} of {len(index_of)} references have no completion, the first: id "
            f"{missing[0]}"
        )
    if repeated := [name for name, count in counts.items() if count > 1]:
        notes.append(f"{len(repeated)} ids have several completions, the first: id {repeated[0]}")
    return pairs, notes


def _differing_references(
    lines: Sequence[JsonLine], reference_rows: Mapping[int, Mapping[str, Any]]
) -> list[str]:
    differing = [
        (line.number, own, theirs)
        for line in lines
        if line.number in reference_rows
        and isinstance(line.value, dict)
        and (own := reference_of(line.value, line.value.get("doc")))
        and own != (theirs := reference_of(reference_rows[line.number]))
    ]
    if not differing:
        return []
    number, own, theirs = differing[0]
    return [
        f"{len(differing)} rows have another reference than the references' file, which counts; "
        f"line {number}: {own!r} for {theirs!r}"
    ]


def reference_of(*rows: Any) -> str:
    """Return the reference of the first of `rows` that has one; '' for none or several values."""
    value = _single_value(
        column_value("reference", *(row for row in rows if isinstance(row, Mapping)))
    )
    # A worked solution of GSM8K ends in "#### 42", and lm-eval keeps it whole as `answer`.
    return "" if value is None else str(value).rpartition("####")[2].strip()


def column_value(column: str, *rows: Mapping[str, Any]) -> Any:
    """Return a column's value from the first of `rows` that has it, under any usual name, or None.

    Example: `column_value("reference", {"gold": "72"})` returns "72".
    """
    values = (row.get(name) for row in rows for name in COLUMN_NAMES[column].split())
    # null and NaN count as missing: exports of tables write them for an empty cell. Only NaN
    # differs from itself.
    return next((value for value in values if value is not None and value == value), None)


def _single_value(value: Any) -> Any:
    """Return a bare answer or reference: a text, a number, or the only one of a list; else None.

    Several references, or an object, name no single answer: their text would grade as wrong.
    """
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    return None if isinstance(value, list | Mapping) else value


def single_text(value: Any, depth: int = 8) -> str | None:
    """Find a completion's text: a string, the last chat message, or a server's only choice.

    `{"choices": [{"message": {"content": "72"}}]}` gives "72"; no single text gives None.

    Args:
        depth: levels of lists and objects to search; bounds the recursion on hostile input.
    """
    if not depth:
        return None
    if isinstance(value, Mapping):
        names = ("content", "text", "message", "choices", "body")
        texts = (single_text(value.get(name), depth - 1) for name in names)
        return next((text for text in texts if text is not None), None)
    # Several choices are several completions of one row: which one to grade cannot be known.
    if isinstance(value, list) and value:
        is_chat = isinstance(value[-1], Mapping) and "role" in value[-1]
        return single_text(value[-1], depth - 1) if is_chat or len(value) == 1 else None
    return value if isinstance(value, str) else None
