"""The one record that every source is turned into and every stage reads."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lib.artifacts import read_records
from lib.core.errors import UserError

MULTIPLE_CHOICE = "multiple_choice"
INSTRUCTION = "instruction"
"""Tag of problems without a right answer, whose completions are judged elsewhere."""
RESPONSE = "response"
"""Tag of problems whose solution is the whole response of a model, to the last space."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """One mathematics problem.

    Attributes:
        id: content hash of `problem`, so that it is the same whatever file or row it came from.
        problem: the question as the model reads it, without instructions.
        reference: the right answer, bare ("72", "\\frac{1}{2}").
        solution: worked solution in words; '' where the source has none.
        subject: what the problem is about, '' where unknown.
        level: difficulty as the source counts it; for generated problems the number of steps.
        tags: properties that evaluation breaks its numbers down by.
    """

    id: str
    problem: str
    reference: str
    solution: str = ""
    subject: str = ""
    level: int | str = ""
    tags: tuple[str, ...] = ()

    @classmethod
    def create(cls, *, problem: str, reference: str, **fields: Any) -> "Problem":
        """A record whose id is derived from its text."""
        return cls(id=content_id(problem), problem=problem, reference=reference, **fields)


def content_id(text: str) -> str:
    """16 hex digits that depend on the words of `text` only, not on case or spacing."""
    words = " ".join(text.lower().split())
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def excerpt(text: str, length: int = 160) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def write_problems(path: Path, problems: Iterable[Problem]) -> int:
    """Write one JSON object a line; returns how many."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with path.open("w", encoding="utf-8") as lines:
        for problem in problems:
            lines.write(json.dumps(dataclasses.asdict(problem), ensure_ascii=False) + "\n")
            count += 1
    return count


def read_problems(path: Path) -> Iterator[Problem]:
    """Read what `write_problems` wrote.

    Raises:
        UserError: a line that is no JSON object or has not a record's fields; names file and line.
    """
    return read_records(
        path,
        lambda fields: Problem(**{**fields, "tags": tuple(fields["tags"])}),
        what="a problem record",
        remedy="this file is written by `prepare`: run `dvc repro prepare`",
    )


def read_benchmarks(folder: Path, names: Sequence[str]) -> dict[str, list[Problem]]:
    """The benchmarks called `names` from the folder `benchmarks` that `prepare` wrote.

    Raises:
        UserError: no such benchmark; lists those that there are.
    """
    known = sorted(path.stem for path in folder.glob("*.jsonl"))
    if missing := [name for name in names if name not in known]:
        raise UserError(
            f"evaluate.benchmarks: no `{missing[0]}` in {folder}; there are {', '.join(known)}"
        )
    return {name: list(read_problems(folder / f"{name}.jsonl")) for name in names}
