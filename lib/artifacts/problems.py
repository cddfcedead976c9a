"""`Problem`, the one record of a problem for all sources and stages, and its JSONL files."""

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lib.artifacts import read_records, write_jsonl
from lib.core.errors import UserError

MULTIPLE_CHOICE = "multiple_choice"
INSTRUCTION = "instruction"
"""Tag of instructions: they have no right answer, and are judged outside this pipeline."""
UNSEEN_EQUATIONS = "unseen_equations"
"""Tag of benchmark problems with a sequence of equations that is in no training set."""
RESPONSE = "response"
"""Tag of problems whose solution is a model's whole response, with its spacing unchanged."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """One mathematics problem.

    Attributes:
        id: content hash of `problem`, independent of file and row.
        problem: the question as the model reads it, without instructions.
        reference: the right answer, bare ("72", "\\frac{1}{2}").
        solution: worked solution in words; '' if the source has none.
        subject: topic, '' if unknown.
        level: difficulty as the source counts it; for generated problems the number of steps.
        tags: properties by which evaluation groups its numbers.
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
        return cls(id=content_id(problem), problem=problem, reference=reference, **fields)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkSet:
    """A benchmark for models from outside the pipeline.

    Attributes:
        path: its file or folder.
        adapter: the adapter of its rows; '' for the pipeline's own records.
        num_repeated: number of rows left out, since they repeat a problem.
    """

    name: str
    path: Path
    adapter: str
    problems: tuple[Problem, ...]
    num_repeated: int


def content_id(text: str) -> str:
    """Return 16 hex digits of the SHA-256 of the words in `text`; spacing does not count."""
    # Any change here changes every id, and with the ids every split and every random choice. Case
    # counts: the points a and A are two.
    words = " ".join(text.split())
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def excerpt(text: str, length: int = 160) -> str:
    """Return the beginning of a text on one line of at most `length` characters, for messages."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def write_problems(path: Path, problems: Iterable[Problem]) -> None:
    """Write problems as JSONL, one object per line."""
    write_jsonl(path, map(vars, problems))


def read_problems(path: Path) -> Iterator[Problem]:
    """Yield the problems of a file that `write_problems` wrote.

    Raises:
        UserError: the file cannot be opened, or a line is no JSON object or lacks a field; names
            file and line.
    """
    return read_records(
        path,
        # JSON has lists in place of tuples.
        lambda fields: Problem(**{**fields, "tags": tuple(fields["tags"])}),
        what="a problem record",
        remedy="this file is written by `prepare`: run `dvc repro prepare`",
    )


def read_benchmarks(folder: Path, names: Sequence[str]) -> dict[str, list[Problem]]:
    """Return {name: problems} of benchmarks in a folder that `prepare` wrote.

    Args:
        folder: has a file <name>.jsonl for each benchmark.
        names: from the param `evaluate.benchmarks`.

    Raises:
        UserError: no such benchmark; lists the available ones.
    """
    known = sorted(path.stem for path in folder.glob("*.jsonl"))
    if missing := [name for name in names if name not in known]:
        raise UserError(
            f"evaluate.benchmarks: no `{missing[0]}` in {folder}; there are {', '.join(known)}"
        )
    return {name: list(read_problems(folder / f"{name}.jsonl")) for name in names}


SHORTER = "leave the problem out, take a model with more, or with vLLM raise model.max_seq_length"
"""What to do about a `long_prompt`."""


def long_prompt(problem: Problem, benchmark: str, length: int, positions: int | None) -> str:
    """Say that a prompt of `length` tokens leaves no position for a completion."""
    return (
        f"{benchmark}: problem {problem.id} has {length} tokens as a prompt, and there are "
        f"{positions} positions for prompt and completion"
    )
