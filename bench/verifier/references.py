"""References and rows of the sets at hand, and pages' tables of what was measured on them."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from reckon_verifier.extract import last_boxed

GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "verifier"


def references(folder: Path | None) -> dict[str, str]:
    """Map references to their problems, '' for an unknown one; the committed sets come first."""
    texts: dict[str, str] = {}
    for path in sorted(GOLDEN.glob("*.jsonl")):
        for row in rows_of(path):
            texts.setdefault(str(row["reference"]).strip(), row.get("problem") or "")
    for reference, problem in _shared(folder) if folder else ():
        texts.setdefault(reference.strip(), problem)
    return {text: problem for text, problem in texts.items() if text}


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a JSONL file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def write_between(page: Path, mark: str, text: str) -> None:
    """Replace the text between the marks of a page.

    Raises:
        LookupError: a mark is absent, or the end comes first.
    """
    start, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->\n"
    before, starts, rest = page.read_text(encoding="utf-8").partition(start)
    _, ends, after = rest.partition(end)
    if not (starts and ends):
        raise LookupError(f"{page}: {start.strip()} and then {end.strip()} are expected")
    page.write_text(before + start + text + end + after, encoding="utf-8")


class Labelled(NamedTuple):
    """A row of any labelled set; `form` is "answer" for a bare one, "text" for a solution.

    A row with `marked_answer` is right if the solution's marked answer is extracted.
    """

    text: str
    reference: str
    form: str
    problem: str
    label: bool


def labelled_row(row: dict[str, Any]) -> Labelled:
    """Read a row of any of the sets; MATH's solutions are completions with their last box."""
    marks = ("marked_answer", "gold", "reference")
    reference = next((row[mark] for mark in marks if mark in row), None)
    bare = row.get("pred", row.get("answer"))
    return Labelled(
        row.get("response", row.get("solution")) if bare is None else bare,
        last_boxed(row["solution"]) or "" if reference is None else str(reference),
        row.get("form", "text" if bare is None else "answer"),
        row.get("question") or row.get("problem") or "",
        label=bool(row.get("equal", row.get("label", True))),
    )


def _shared(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted((folder / "grading").rglob("*.jsonl")):
        for row in rows_of(path):
            each = labelled_row(row)
            yield each.reference, each.problem
    for path in sorted((folder / "data").rglob("*.jsonl")):
        for row in rows_of(path):
            yield _answer(row), row.get("problem") or row["question"]
    for path in sorted((folder / "data").rglob("*.csv")):
        for question, *options, letter in csv.reader(path.open(encoding="utf-8")):
            marked = (f"({name}) {text}" for name, text in zip("ABCD", options, strict=True))
            yield letter, " ".join((question, *marked))
            yield options["ABCD".index(letter)], question


def _answer(row: dict[str, Any]) -> str:
    """Return the reference of a row of any of the sets."""
    if "final_answer" in row:
        return ", ".join(row["final_answer"])
    if "answer" not in row:
        return last_boxed(row["solution"]) or ""
    answer = row["answer"]
    if isinstance(answer, float) and answer.is_integer():
        return str(int(answer))
    return str(answer).rpartition("####")[2]
