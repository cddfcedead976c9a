"""Grade stored completions, ours or anybody's: a JSONL file in, the same rows with grades out.

Columns are looked for by their usual names. A row that cannot be graded is kept with its reason, so
that the file that is written has as many rows as the one that was read.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.artifacts import write_jsonl
from lib.errors import UserError
from lib.prompts import PROMPT_FORMATS, PromptFormat
from lib.rewards.rollout import Rollout
from lib.stats import Estimate, clustered_mean, share_interval

COLUMNS = {
    "completion": [
        "completion",
        "response",
        "output",
        "generation",
        "generated_text",
        "model_output",
        "text",
    ],
    "answer": ["pred", "prediction", "predicted_answer", "extracted_answer"],
    "reference": [
        "reference",
        "gold",
        "ground_truth",
        "target",
        "expected",
        "expected_answer",
        "answer",
    ],
    "problem": ["problem", "question", "query", "input", "prompt"],
    "label": ["label", "equal", "correct", "is_correct", "answer_ok"],
    "id": ["problem_id", "id", "question_id"],
}
"""Usual names of a column, the first that a row has; `answer` is a bare answer, not extracted."""

Grader = Callable[[str, str], bool]


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a file of completions came to.

    Attributes:
        rates: name of a rate and its estimate, clustered by problem.
        confusion: (label, graded right): rows, where rows have labels.
        bad_rows: line number and what was wrong with it.
    """

    rates: dict[str, Estimate]
    confusion: dict[str, dict[tuple[bool, bool], int]]
    bad_rows: list[tuple[int, str]]

    def lines(self) -> Iterator[str]:
        """The summary as text."""
        for number, problem in self.bad_rows:
            yield f"line {number}: {problem}"
        yield f"graded {max((e.n for e in self.rates.values()), default=0)} problems"
        yield f"bad rows {len(self.bad_rows)}"
        for name, estimate in self.rates.items():
            interval = share_interval(estimate)
            between = f" [{interval.low:.4f}, {interval.high:.4f}]" if estimate.n > 1 else ""
            yield f"{name} {estimate.value:.4f}{between}"
        for grader, counts in self.confusion.items():
            right, wrong = (counts[label, True] + counts[label, False] for label in (True, False))
            yield (
                f"{grader}: labelled right {right}: graded right {counts[True, True]}, wrong "
                f"{counts[True, False]}; labelled wrong {wrong}: graded right "
                f"{counts[False, True]}, wrong {counts[False, False]}"
            )


def grade_file(
    source: Path,
    out: Path,
    *,
    prompt_format: PromptFormat | None = None,
    graders: Mapping[str, Grader] | None = None,
) -> Summary:
    """Grade every row of `source` and write it, with its grade, to `out`.

    Args:
        prompt_format: read answers between its marks, and tell whether each has the form.
        graders: others to run beside ours, `(completion or answer, reference) -> right`.

    Raises:
        UserError: `source` has no row that can be graded.
    """
    lines = source.read_text(encoding="utf-8", errors="replace").split("\n")
    numbered = {
        number: _graded(line, prompt_format=prompt_format, graders=graders or {})
        for number, line in enumerate(lines, 1)
        if line.strip()
    }
    rows = list(numbered.values())
    write_jsonl(out, rows)
    grades = [row["grade"] for row in rows if "grade" in row]
    if not grades:
        first = rows[0]["error"] if rows else "it is empty"
        raise UserError(f"{source}: no row can be graded; the first: {first}")
    clusters = [grade["problem"] for grade in grades]
    names = ["right", *(("format_ok",) if prompt_format else ()), *(graders or {})]
    return Summary(
        rates={name: clustered_mean([g[name] for g in grades], clusters) for name in names},
        confusion=_confusion(grades, ["right", *(graders or {})]),
        bad_rows=[(n, row["error"]) for n, row in numbered.items() if "error" in row],
    )


def _confusion(
    grades: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[str, dict[tuple[bool, bool], int]]:
    labelled = [grade for grade in grades if grade["label"] is not None]
    return {
        name: Counter((grade["label"], grade[name]) for grade in labelled)
        for name in (names if labelled else ())
    }


def _graded(
    line: str, *, prompt_format: PromptFormat | None, graders: Mapping[str, Grader]
) -> dict[str, Any]:
    """The row of one line with its grade, or with the reason why it has none."""
    try:
        row = json.loads(line)
    except ValueError as error:
        return {"line": line, "error": f"no JSON: {error}"}
    if not isinstance(row, dict):
        return {"line": line, "error": f"expected an object, got {type(row).__name__}"}
    fields = {column: _first(row, names) for column, names in COLUMNS.items()}
    text = _text(fields["completion"])
    bare = None if text is not None or fields["answer"] is None else str(fields["answer"])
    if text is None and bare is None:
        return {**row, "error": f"no completion: none of {', '.join(COLUMNS['completion'])}"}
    if fields["reference"] is None or not str(fields["reference"]).strip():
        return {**row, "error": f"no reference: none of {', '.join(COLUMNS['reference'])}"}
    reference, problem = str(fields["reference"]), _text(fields["problem"])
    rollout = Rollout(
        completion=text or "",
        reference=reference,
        # One without marks: the answer is wherever the rules find it.
        prompt_format=prompt_format or PROMPT_FORMATS["boxed"],
        problem=problem,
    )
    answer = bare if text is None else rollout.answer
    verdict = rollout.compare(answer)
    grade = {
        "right": verdict.equal,
        "answer": answer,
        "reason": verdict.decided_by,
        "label": _label(fields["label"]),
        "problem": str(fields["id"] or problem or reference),
    }
    if prompt_format:
        grade["format_ok"] = rollout.format_ok
    for name, grader in graders.items():
        grade[name] = grader(bare if text is None else text, reference)  # type: ignore[arg-type]
    return {**row, "grade": grade}


def _first(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _text(value: Any) -> str | None:
    """A text; of chat messages the last one's content."""
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1].get("content")
    return value if isinstance(value, str) else None


def _label(value: Any) -> bool | None:
    known = {"true": True, "false": False, "right": True, "wrong": False, "1": True, "0": False}
    return known.get(str(value).lower().removesuffix(".0"))


def math_verify_grader() -> Grader:
    """math-verify with its defaults; what it cannot parse, or fails on, is wrong."""
    from math_verify import parse, verify

    def grader(text: str, reference: str) -> bool:
        right: Any = parse(reference if "$" in reference else f"${reference}$")
        return bool(verify(right, parse(text) or parse(f"${text}$")))

    return grader
