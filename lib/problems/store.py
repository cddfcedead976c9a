"""Problems held as an Arrow file on disk, memory-mapped: their text takes no memory of its own.

What the filters keep in memory is one number or hash per row. A `ProblemTable` never changes; a
filter gives a smaller one, which shares the file.
"""

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from datasets import Dataset, concatenate_datasets

from lib.problems.schema import Problem

BATCH = 200
"""Rows in memory at a time."""

_SCHEMA = pyarrow.schema(
    [
        *((field.name, pyarrow.string()) for field in dataclasses.fields(Problem)[:-1]),
        ("tags", pyarrow.list_(pyarrow.string())),
        ("source", pyarrow.int32()),
    ]
)
"""A record's fields (`level`, a number or a text, as JSON), and which source it is from."""

_FIELDS = _SCHEMA.names[:-1]


class ProblemTable:
    """Problems in order, read from disk a batch at a time.

    Args:
        rows: a dataset of the columns that `write_table` writes.
    """

    def __init__(self, rows: Dataset) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Problem]:
        for batch in self.rows.iter(batch_size=BATCH):
            for values in zip(*(batch[name] for name in _FIELDS), strict=True):
                yield _problem(dict(zip(_FIELDS, values, strict=True)))

    def column(self, name: str) -> Iterator[Any]:
        """The values of one column, in order."""
        for batch in self.rows.select_columns([name]).iter(batch_size=BATCH):
            yield from batch[name]

    def sources(self) -> list[int]:
        """The number of each row's source."""
        return [int(number) for number in self.column("source")]

    def text(self, index: int) -> str:
        """The problem text of one row."""
        text: str = self.rows[index]["problem"]
        return text

    def select(self, indices: Sequence[int]) -> "ProblemTable":
        """The rows at these positions, in the order given."""
        return ProblemTable(self.rows.select(indices))

    def batches(self) -> Iterator[list[Problem]]:
        """Problems, `BATCH` at a time."""
        problems = iter(self)
        while batch := list(itertools.islice(problems, BATCH)):
            yield batch


def write_table(path: Path, problems: Iterable[Problem], *, source: int = 0) -> ProblemTable:
    """Stream problems into an Arrow file and map it; the file must outlive the table.

    Args:
        path: the file.
        problems: what to write, all of it from one source.
        source: the number of that source.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place: a table that maps an older file of this name goes on reading that one.
    partial = path.with_name(f".{path.name}.partial")
    remaining = iter(problems)
    with (
        pyarrow.OSFile(str(partial), "wb") as file,
        pyarrow.ipc.new_stream(file, _SCHEMA) as stream,
    ):
        while batch := list(itertools.islice(remaining, BATCH)):
            rows = [{**_row(problem), "source": source} for problem in batch]
            stream.write_batch(pyarrow.RecordBatch.from_pylist(rows, schema=_SCHEMA))
    partial.replace(path)
    return ProblemTable(Dataset.from_file(str(path)))


def join(tables: Sequence[ProblemTable]) -> ProblemTable:
    """The rows of several tables, one after the other."""
    return ProblemTable(concatenate_datasets([table.rows for table in tables]))


def where(table: ProblemTable, kept: Callable[[Problem], bool]) -> ProblemTable:
    """The rows for which `kept` holds."""
    return table.select([index for index, problem in enumerate(table) if kept(problem)])


def _row(problem: Problem) -> dict[str, Any]:
    return {**dataclasses.asdict(problem), "level": json.dumps(problem.level)}


def _problem(row: dict[str, Any]) -> Problem:
    return Problem(**{**row, "level": json.loads(row["level"]), "tags": tuple(row["tags"])})
