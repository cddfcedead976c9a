"""Tables of problems in memory-mapped Arrow files, so that their text stays out of memory.

Filters keep only numbers and hashes of each row in memory. A `ProblemTable` never changes: a filter
returns a smaller table that shares the file, and counts dropped rows in the same `Drops`.
"""

import dataclasses
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from datasets import Dataset, concatenate_datasets
from datasets.arrow_writer import ArrowWriter

from lib.artifacts import SCRATCH, replacing
from lib.artifacts.problems import Problem, excerpt

BATCH = 200
"""Rows in memory at a time."""

_SCHEMA = pyarrow.schema(
    [
        # [:-1]: `tags`, the last field, is a list.
        *((field.name, pyarrow.string()) for field in dataclasses.fields(Problem)[:-1]),
        ("tags", pyarrow.list_(pyarrow.string())),
        ("source", pyarrow.int32()),
    ]
)
"""Columns: a record's fields, with `level` (a number or a text) as JSON, and the index of the
record's source."""

NUM_EXAMPLES = 3
"""Example rows per reason in provenance."""


@dataclasses.dataclass
class Drops:
    """Counts and examples of dropped rows by reason, for one set.

    Attributes:
        num_read: rows read from the sources.
        counts: dropped rows by reason.
        changed: kept rows by what is empty or converted in them, such as `level`.
        examples: the first few rows per reason: place or id, and fault.
    """

    num_read: int = 0
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    changed: Counter[str] = dataclasses.field(default_factory=Counter)
    examples: dict[str, list[dict[str, str]]] = dataclasses.field(default_factory=dict)

    def add(self, reason: str, *, row: str, detail: str, text: str = "") -> None:
        """Count one dropped row under `reason`, and keep the first few rows as examples.

        Args:
            row: the row's id or place.
            detail: what is wrong with it.
            text: the problem's text, of which an excerpt is kept; '' if unknown.
        """
        self.count(reason)
        examples = self.examples.setdefault(reason, [])
        # The first `NUM_EXAMPLES` only, so that memory does not grow with the bad rows.
        if len(examples) < NUM_EXAMPLES:
            examples.append({"row": row, "found": detail, "problem": excerpt(text)})

    def count(self, reason: str, number: int = 1) -> None:
        """Count rows without an example; 0 leaves no entry."""
        if number:
            self.counts[reason] += number

    def metrics(self) -> dict[str, Any]:
        """Return the numbers for the metrics file; shares are of the rows read.

        {"read": 100, "kept": 98, "dropped": {"too_long": {"count": 2, "share": 0.02}}}, and
        "changed": {"level": 3} if there are any.
        """
        return {
            "read": self.num_read,
            "kept": self.num_read - sum(self.counts.values()),
            "dropped": {
                reason: {"count": count, "share": count / self.num_read}
                for reason, count in self.counts.items()
            },
            **({"changed": dict(self.changed)} if self.changed else {}),
        }

    def __str__(self) -> str:
        """Format the counts for a message: "3 too_long, 1 contaminated; changed: 2 level"."""
        dropped, changed = (
            ", ".join(f"{count} {reason}" for reason, count in counts.items())
            for counts in (self.counts, self.changed)
        )
        return (dropped or "none") + (f"; changed: {changed}" if changed else "")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder for Arrow files; it is deleted at the end of the `with` block.

    It is not under /tmp, which may be in memory: the files exist to keep text out of memory.
    """
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="prepare-", dir=SCRATCH) as folder:
        yield Path(folder)


Check = Callable[[int, Problem], tuple[str, str] | None]
"""Called with a row's index and problem; returns reason and detail to drop it, None to keep it."""


@dataclasses.dataclass(frozen=True)
class ProblemTable:
    """Problems in order, read from disk a batch at a time.

    Attributes:
        rows: a dataset with the columns of `write_table`.
        drops: counts of dropped rows, shared with the tables that this one was selected from.
    """

    rows: Dataset
    drops: Drops

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Problem]:
        return itertools.chain.from_iterable(self.batches())

    def batches(self) -> Iterator[list[Problem]]:
        """Yield the problems in lists of `BATCH`; the last list may be shorter."""
        # Without `source`, the columns are the fields of a `Problem`.
        rows: Any = self.rows.remove_columns("source").with_format("arrow")
        for batch in rows.iter(batch_size=BATCH):
            columns = batch.to_pydict()
            # `level`, a number or a text, is stored as JSON; Arrow has lists and no tuples.
            columns["level"] = map(json.loads, columns["level"])
            columns["tags"] = map(tuple, columns["tags"])
            rows_of_batch = zip(*columns.values(), strict=True)
            yield [Problem(**dict(zip(columns, row, strict=True))) for row in rows_of_batch]

    def column(self, name: str) -> Iterator[Any]:
        for batch in self.rows.select_columns([name]).iter(batch_size=BATCH):
            yield from batch[name]

    def select(self, indices: Iterable[int]) -> "ProblemTable":
        # `datasets` keeps the indices, and hashes them, an array fast; the file is not copied.
        return ProblemTable(self.rows.select(np.fromiter(indices, np.int64)), self.drops)

    def keep(self, check: Check) -> "ProblemTable":
        """Return the rows for which `check` returns None; count the others in `drops`.

        Args:
            check: called once per row, in order, with its index and problem. For a row to drop it
                returns (reason, detail).
        """
        faults = {
            index: fault for index, problem in enumerate(self) if (fault := check(index, problem))
        }
        return self.without(faults)

    def without(self, faults: Mapping[int, tuple[str, str]]) -> "ProblemTable":
        """Return the rows that have no fault; count the others in `drops`.

        Args:
            faults: row → (reason, detail), in the table's order.
        """
        if not faults:
            return self
        for problem, (reason, detail) in zip(self.select(faults), faults.values(), strict=True):
            self.drops.add(reason, row=problem.id, detail=detail, text=problem.problem)
        return self.select(index for index in range(len(self)) if index not in faults)


def write_table(
    path: Path, problems: Iterable[Problem], drops: Drops, *, source: int = 0
) -> ProblemTable:
    """Stream problems into an Arrow file and memory-map it; the file must outlive the table.

    Args:
        path: the file.
        problems: the problems of one source.
        drops: counts of dropped rows, shared by the table and tables selected from it.
        source: the index of that source in its set, stored with every row.
    """
    # The new file is renamed into place. A table that maps an older file of this name keeps its
    # data, since that file is not overwritten.
    with (
        replacing(path) as partial,
        ArrowWriter(schema=_SCHEMA, path=str(partial), writer_batch_size=BATCH) as writer,
    ):
        for problem in problems:
            # A number or a text; an Arrow column has one type, so both are stored as JSON.
            level = json.dumps(problem.level)
            writer.write({**vars(problem), "level": level, "source": source})
        writer.finalize()
    return ProblemTable(Dataset.from_file(str(path)), drops)


def join(tables: Sequence[ProblemTable]) -> ProblemTable:
    """Concatenate several tables whose counts belong together."""
    return ProblemTable(concatenate_datasets([table.rows for table in tables]), tables[0].drops)
