"""Grade stored completions, whoever wrote them: a JSONL file in, the same rows with grades out.

Columns are looked for by their usual names. A row that cannot be graded is kept with its reason, so
that the file that is written has as many rows as the one that was read.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.artifacts import read_jsonl, write_jsonl
from lib.core.errors import UserError
from lib.prompts import PROMPT_FORMATS, PromptFormat
from lib.rewards.functions import Grading, rewards_of, scores
from lib.stats import clustered_mean, share_interval

COLUMNS = {
    "completion": "completion response output generation generated_text model_output text resps "
    "choices outputs",
    "answer": "pred prediction predicted_answer extracted_answer",
    "reference": "reference gold ground_truth target expected expected_answer answer",
    "problem": "problem question query input prompt",
    "label": "label equal correct is_correct answer_ok exact_match",
    "id": "problem_id id question_id doc_id custom_id",
}
"""Usual names of a column, the first that a row has; `answer` is a bare answer, not extracted."""

LABELS = {"true": True, "right": True, "1": True, "false": False, "wrong": False, "0": False}


def grade_file(
    source: Path,
    out: Path,
    *,
    references: Path | None = None,
    prompt_format: PromptFormat | None = None,
    stack: str = "",
) -> Iterator[str]:
    """Grade every row of `source`, and write it, with its grade, to `out`.

    Args:
        references: rows with what `source` lacks, of the same id.
        prompt_format: read answers between its marks, and tell whether each has the form.
        stack: rewards of 0 or 1, such as `math_verify`'s, beside the verdict.

    Returns:
        The summary: bad rows, each rate clustered by problem, and, where rows have labels, how
        often each grader agrees with them.

    Raises:
        UserError: `source` has no row that can be graded.
    """
    # `boxed` has no marks: the answer is wherever the rules find it.
    grading = Grading(
        rewards_of(stack) if stack else (), prompt_format=prompt_format or PROMPT_FORMATS["boxed"]
    )
    known = {_first(row, "id"): row for row in (read_jsonl(references) if references else ())}
    lines = source.read_text(encoding="utf-8", errors="replace").split("\n")
    rows = {
        number: _graded(line, grading, known, form=prompt_format is not None)
        for number, line in enumerate(lines, 1)
        if line.strip()
    }
    write_jsonl(out, list(rows.values()))
    errors = {number: row["error"] for number, row in rows.items() if "error" in row}
    grades = {number: row["grade"] for number, row in rows.items() if "grade" in row}
    if not grades:
        first = next(iter(errors.values()), "it is empty")
        raise UserError(f"{source}: no row can be graded; the first: {first}")
    names = [reward.__name__ for reward in grading.rewards]
    return _summary(grades, errors, ["right", *(["format_ok"] if prompt_format else []), *names])


def _summary(
    grades: Mapping[int, Mapping[str, Any]], errors: Mapping[int, str], names: Sequence[str]
) -> Iterator[str]:
    for number, error in errors.items():
        yield f"line {number}: {error}"
    problems = [grade["problem"] for grade in grades.values()]
    yield f"graded {len(set(problems))} problems"
    yield f"bad rows {len(errors)}"
    for name in names:
        values = [grade[name] for grade in grades.values()]
        estimate = clustered_mean(values, problems)
        interval = share_interval(estimate)
        between = f" [{interval.low:.4f}, {interval.high:.4f}]" if estimate.n > 1 else ""
        yield f"{name} {estimate.value:.4f}{between}"
        counts = Counter(
            (grade["label"], bool(value))
            for grade, value in zip(grades.values(), values, strict=True)
        )
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


def _graded(
    line: str, grading: Grading, known: Mapping[Any, Mapping[str, Any]], *, form: bool
) -> dict[str, Any]:
    """The row of one line with its grade, or with the reason why it has none."""
    try:
        row = json.loads(line)
    except ValueError as error:
        return {"line": line, "error": f"no JSON: {error}"}
    if not isinstance(row, dict):
        return {"line": line, "error": f"expected an object, got {type(row).__name__}"}
    # lm-eval keeps the benchmark's own columns below `doc`.
    doc = row["doc"] if isinstance(row.get("doc"), dict) else {}
    told = {**known.get(_first(row, "id"), {}), **doc, **row}
    fields = {column: _first(told, column) for column in COLUMNS}
    text, problem = _text(fields["completion"]), _text(fields["problem"])
    is_answer = text is None and fields["answer"] is not None
    if text is None and not is_answer:
        return {**row, "error": f"not one completion in any of {COLUMNS['completion']}"}
    # GSM8K's own column, which lm-eval takes as it is, ends its solution so.
    reference = "" if fields["reference"] is None else str(fields["reference"])
    if not (reference := reference.rpartition("####")[2].strip()):
        return {**row, "error": f"no reference: none of {COLUMNS['reference']}"}
    rollout = grading.rollout(
        str(fields["answer"]) if text is None else text,
        reference=reference,
        problem=problem,
        is_answer=is_answer,
    )
    names = [reward.__name__ for reward in grading.rewards]
    earned = [values[0] for values in scores(grading.rewards, [rollout])]
    grade = {
        "right": rollout.answer_ok,
        "answer": rollout.answer,
        "reason": rollout.verdict.decided_by,
        "label": LABELS.get(str(fields["label"]).lower().removesuffix(".0")),
        "problem": str(fields["id"] or problem or reference),
        **({"format_ok": rollout.format_ok} if form else {}),
        **dict(zip(names, earned, strict=True)),
    }
    return {**row, "grade": grade}


def _first(row: Mapping[str, Any], column: str) -> Any:
    return next((row[name] for name in COLUMNS[column].split() if row.get(name) is not None), None)


def _text(value: Any) -> str | None:
    """A text; of chat messages the last one's, of what a server or lm-eval wrote its only one."""
    if isinstance(value, Mapping):
        parts = (value.get(name) for name in ("content", "text", "message", "choices", "body"))
        return next((text for part in parts if (text := _text(part)) is not None), None)
    if isinstance(value, list) and value:
        is_chat = isinstance(value[-1], Mapping) and "role" in value[-1]
        return _text(value[-1]) if is_chat or len(value) == 1 else None
    return value if isinstance(value, str) else None
