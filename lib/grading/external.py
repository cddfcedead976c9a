"""Grade a JSONL file of completions of any origin: write the same rows with grades.

Columns are recognised by their usual names. A row without a grade is written with the reason, so
that output and input have the same number of rows.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.artifacts import JsonLine, json_lines, read_records, write_jsonl
from lib.core.errors import UserError
from lib.prompts import PROMPT_FORMATS, PromptFormat
from lib.rewards.functions import Grading, rewards_of
from lib.stats import clustered_mean, share_interval

COLUMN_NAMES = {
    "completion": "completion response output generation generated_text model_output text resps "
    "choices outputs",
    "answer": "pred prediction predicted_answer extracted_answer",
    "reference": "reference gold ground_truth target expected expected_answer answer",
    "problem": "problem question query input prompt",
    "label": "label equal correct is_correct answer_ok exact_match",
    "id": "problem_id id question_id doc_id custom_id",
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
    """Grade every row of `source`, write it with its grade to `out`, and return a summary.

    Args:
        references: rows with the references and problems that `source` lacks. They are paired by
            id, or by row number if neither file has ids.
        prompt_format: format of the completions: answers are read between its marks, and grades get
            `format_ok`. None reads answers in any layout.
        math_verify: also grade by the stack `math_verify`, for comparison.

    Returns:
        Lines with the bad rows, each rate with its interval over problems and, if rows have
        labels, each grader's agreement with the labels.

    Raises:
        UserError: no row of `source` can be graded, or the references cannot be paired.
    """
    # `boxed` has no marks, so that answers of any layout are extracted by the verifier's rules.
    grading = Grading(
        rewards_of("math_verify") if math_verify else (),
        prompt_format=prompt_format or PROMPT_FORMATS["boxed"],
    )
    lines = list(json_lines(source))
    reference_rows, notes = _paired_references(references, lines) if references else ({}, [])
    verdicts = {
        line.number: _verdict(
            line, grading, reference_rows.get(line.number, {}), form=prompt_format is not None
        )
        for line in lines
    }
    errors = {number: each["error"] for number, each in verdicts.items() if "error" in each}
    grades = {number: each["grade"] for number, each in verdicts.items() if "grade" in each}
    # Nothing is written where nothing was graded: `out` may hold the result of an earlier run.
    if not grades:
        first = next(iter(errors.values()), "it is empty")
        raise UserError(f"{source}: no row can be graded; the first: {first}")
    write_jsonl(out, ({**_row(line), **verdicts[line.number]} for line in lines))
    names = [reward.__name__ for reward in grading.rewards]
    names = ["right", *(["format_ok"] if prompt_format else []), *names]
    return itertools.chain(notes, _summary(grades, errors, names))


def _summary(
    grades: Mapping[int, Mapping[str, Any]], errors: Mapping[int, str], names: Sequence[str]
) -> Iterator[str]:
    """Yield the summary's lines, the bad rows first.

    Args:
        grades: line number → grade, as `_verdict` returns it.
        errors: line number → reason why the row has no grade.
        names: rates to report, keys of a grade.
    """
    for number, error in errors.items():
        yield f"line {number}: {error}"
    problems = [grade["problem"] for grade in grades.values()]
    yield f"graded {len(set(problems))} problems"
    yield f"bad rows {len(errors)}"
    for name in names:
        values = [grade[name] for grade in grades.values()]
        estimate = clustered_mean(values, problems)
        interval = share_interval(estimate)
        # A single problem has no spread over problems, from which to compute an interval.
        interval_text = f" [{interval.low:.4f}, {interval.high:.4f}]" if estimate.n > 1 else ""
        yield f"{name} {estimate.value:.4f}{interval_text}"
        # (label, grade) → rows: the confusion matrix of this grader against the labels.
        counts = Counter(
            (grade["label"], bool(value))
            for grade, value in zip(grades.values(), values, strict=True)
        )
        # Numbers of rows labelled right and wrong. Rows without a label are in neither: their key
        # has None.
        right, wrong = (counts[label, True] + counts[label, False] for label in (True, False))
        if (right or wrong) and name not in ("format_ok", "graders_disagree"):
            yield (
                f"{name}: labelled right {right}: graded right {counts[True, True]}, wrong "
                f"{counts[True, False]}; labelled wrong {wrong}: graded right "
                f"{counts[False, True]}, wrong {counts[False, False]}"
            )
    if "graders_disagree" in names:
        apart = [str(number) for number, grade in grades.items() if grade["graders_disagree"]]
        yield f"graders disagree on lines {', '.join(apart) or 'none'}"


def _row(line: JsonLine) -> dict[str, Any]:
    """Return a line's JSON object without the columns `VERDICT`; any other line as its text."""
    if not isinstance(line.value, dict):
        return {"line": line.text}
    return {key: value for key, value in line.value.items() if key not in VERDICT}


def _verdict(
    line: JsonLine, grading: Grading, reference_row: Mapping[str, Any], *, form: bool
) -> dict[str, Any]:
    """Grade one line as `{"grade": {"right": True, …}}`, or as `{"error": reason}`.

    Args:
        reference_row: row with the reference and problem if the line has none; may be empty.
        form: add `format_ok` to the grade.
    """
    if line.fault:
        return {"error": f"not JSON: {line.fault}"}
    if not isinstance(row := line.value, dict):
        return {"error": f"expected an object, got {type(row).__name__}"}
    # lm-eval's `--log_samples` keeps the benchmark's own columns below `doc`.
    doc = row["doc"] if isinstance(row.get("doc"), dict) else {}
    # A completion is preferred to a bare answer: our extraction is the same for all models.
    text, answer = _text(_first("completion", row)), _first("answer", row)
    if text is None and answer is None:
        return {"error": f"expected one completion in one of {COLUMN_NAMES['completion']}"}
    # These two may be in the row, in its `doc`, or in another file: the first one found counts.
    problem = _text(_first("problem", row, doc, reference_row))
    reference = _first("reference", row, doc, reference_row)
    # A worked solution of GSM8K ends in "#### 42", and lm-eval keeps it whole as `answer`.
    reference = "" if reference is None else str(reference).rpartition("####")[2].strip()
    if not reference:
        return {"error": f"no reference in any of {COLUMN_NAMES['reference']}"}
    rollout = grading.rollout(
        str(answer) if text is None else text,
        reference=reference,
        problem=problem,
        is_answer=text is None,
    )
    grading.score([rollout])
    # The key of the problem is the first of these that exists. Completions with the same key form
    # one cluster of the standard error.
    named_by = (_first("id", row), problem, reference)
    grade = {
        "right": rollout.answer_ok,
        "answer": rollout.answer,
        "reason": rollout.verdict.decided_by,
        "label": LABELS.get(str(_first("label", row)).lower().removesuffix(".0")),
        "problem": next(str(each) for each in named_by if each not in (None, "")),
        **({"format_ok": rollout.format_ok} if form else {}),
        **grading.by_name(rollout),
    }
    return {"grade": grade}


def _paired_references(
    path: Path, lines: Sequence[JsonLine]
) -> tuple[Mapping[int, Mapping[str, Any]], list[str]]:
    """Pair completions with references by id, or by order if neither file has ids.

    Returns:
        Line number of a completion → its reference row, and notes for the summary.

    Raises:
        UserError: neither way gives each row exactly one reference.
    """
    remedy = "one reference a line, with an `id` as in the completions"
    references = list(read_records(path, dict, what="a row", remedy=remedy))
    # Ids of the reference rows, and line number → id of the completions; None for no id.
    names = [_first("id", row) for row in references]
    wanted = {line.number: _first("id", _row(line)) for line in lines}
    # By order only if no row of either file has an id; otherwise a shifted row would go unnoticed.
    no_ids = all(name is None for name in (*names, *wanted.values()))
    if no_ids and len(references) == len(lines):
        by_order = dict(zip(wanted, references, strict=True))
        return by_order, [f"neither file has ids: {len(lines)} pairs, row by row"]
    if unnamed := names.count(None):
        raise UserError(
            f"{path}: {unnamed} rows without an id, for {len(lines)} completions; expected an id "
            "in each, or as many rows as completions and no id in either file"
        )
    # Id → row in `references`. Ids are compared as text: one file may write the id 7 as a number,
    # the other as "7".
    known: dict[str, int] = {}
    for number, name in enumerate(map(str, names)):
        if (first := known.setdefault(name, number)) < number:
            raise UserError(
                f"{path}: row {number + 1} has the id {name} of row {first + 1}; expected one "
                "reference for each id"
            )
    return {
        number: references[known[str(name)]]
        for number, name in wanted.items()
        if name is not None and str(name) in known
    }, []


def _first(column: str, *rows: Mapping[str, Any]) -> Any:
    """Return the first value under a column's usual names in the first row with one, or None."""
    values = (row.get(name) for row in rows for name in COLUMN_NAMES[column].split())
    # null counts as missing: exports of tables write it for an empty cell.
    return next((value for value in values if value is not None), None)


def _text(value: Any, depth: int = 8) -> str | None:
    """Find a completion's text: a string, the last chat message, or a server's only choice.

    `{"choices": [{"message": {"content": "72"}}]}` gives "72"; no single text gives None.

    Args:
        depth: levels of lists and objects to search; bounds the recursion on hostile input.
    """
    if not depth:
        return None
    if isinstance(value, Mapping):
        parts = (value.get(name) for name in ("content", "text", "message", "choices", "body"))
        return next((text for part in parts if (text := _text(part, depth - 1)) is not None), None)
    # Several choices are several completions of one row: which one to grade cannot be known.
    if isinstance(value, list) and value:
        is_chat = isinstance(value[-1], Mapping) and "role" in value[-1]
        return _text(value[-1], depth - 1) if is_chat or len(value) == 1 else None
    return value if isinstance(value, str) else None
