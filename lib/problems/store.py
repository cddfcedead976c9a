"""Problems held as an Arrow file on disk, memory-mapped: their text takes no memory of its own.

What the filters keep in memory is one number or hash per row. A `ProblemTable` never changes; a
filter gives a smaller one, which shares the file and counts in the same `Drops` what it left out.
"""

import dataclasses
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
from datasets import Dataset, concatenate_datasets
from datasets.arrow_writer import ArrowWriter

from lib.artifacts import SCRATCH, replacing
from lib.artifacts.problems import Problem, excerpt

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

NUM_EXAMPLES = 3
"""Rows of each reason that provenance shows."""


@dataclasses.dataclass
class Drops:
    """Counts and examples by reason, for one set of problems.

    Attributes:
        num_read: rows that there were at the start.
        counts: rows dropped, by reason.
        examples: the first few of each reason: where it is from or its id, and what was found.
    """

    num_read: int = 0
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    examples: dict[str, list[dict[str, str]]] = dataclasses.field(default_factory=dict)

    def add(self, reason: str, *, row: str, detail: str, text: str = "") -> None:
        """Count one row: `row` is its id or place, `detail` what is wrong with it."""
        self.count(reason)
        examples = self.examples.setdefault(reason, [])
        if len(examples) < NUM_EXAMPLES:
            examples.append({"row": row, "found": detail, "problem": excerpt(text)})

    def count(self, reason: str, number: int = 1) -> None:
        """Count rows that need no example; none leaves no trace."""
        if number:
            self.counts[reason] += number

    def metrics(self) -> dict[str, Any]:
        """Numbers for the metrics file; shares are of the rows read."""
        return {
            "read": self.num_read,
            "kept": self.num_read - sum(self.counts.values()),
            "dropped": {
                reason: {"count": count, "share": count / self.num_read}
                for reason, count in self.counts.items()
            },
        }

    def __str__(self) -> str:
        """The counts as a message lists them."""
        listed = ", ".join(f"{count} {reason}" for reason, count in self.counts.items())
        return listed or "none"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for Arrow files that lasts as long as the block.

    Not under /tmp, which may be memory: the point of those files is that text takes none.
    """
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="prepare-", dir=SCRATCH) as folder:
        yield Path(folder)


def batches(problems: Iterable[Problem]) -> Iterator[list[Problem]]:
    """Problems, `BATCH` at a time."""
    remaining = iter(problems)
    while batch := list(itertools.islice(remaining, BATCH)):
        yield batch


Check = Callable[[int, Problem], tuple[str, str] | None]
"""Of a row (its index, the problem): why it goes, as a reason and a detail; None keeps it."""


@dataclasses.dataclass(frozen=True)
class ProblemTable:
    """Problems in order, read from disk a batch at a time.

    Attributes:
        rows: a dataset of the columns that `write_table` writes.
        drops: what was left out on the way, shared with the tables that this one was selected from.
    """

    rows: Dataset
    drops: Drops

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Problem]:
        for batch in self.rows.iter(batch_size=BATCH):
            for values in zip(*(batch[name] for name in _FIELDS), strict=True):
                row = dict(zip(_FIELDS, values, strict=True))
                yield Problem(**row | {"level": json.loads(row["level"]), "tags": (*row["tags"],)})

    def column(self, name: str) -> Iterator[Any]:
        """The values of one column, in order."""
        for batch in self.rows.select_columns([name]).iter(batch_size=BATCH):
            yield from batch[name]

    def select(self, indices: Iterable[int]) -> "ProblemTable":
        """The rows at these positions, in this order."""
        return ProblemTable(self.rows.select(indices), self.drops)

    def keep(self, check: Check) -> "ProblemTable":
        """The rows that pass `check`, called once for each row in order; the others are counted."""
        kept = []
        for index, problem in enumerate(self):
            if fault := check(index, problem):
                reason, detail = fault
                self.drops.add(reason, row=problem.id, detail=detail, text=problem.problem)
            else:
                kept.append(index)
        return self.select(kept)


def write_table(
    path: Path, problems: Iterable[Problem], drops: Drops, *, source: int = 0
) -> ProblemTable:
    """Stream problems into an Arrow file and map it; the file must outlive the table.

    Args:
        path: the file.
        problems: what to write, all of it from one source.
        drops: where the table, and those selected from it, count.
        source: the number of that source.
    """
    # Renamed into place: a table that maps an older file of this name keeps reading that one.
    with (
        replacing(path) as partial,
        ArrowWriter(schema=_SCHEMA, path=str(partial), writer_batch_size=BATCH) as writer,
    ):
        for problem in problems:
            # `level` is a number or a text, which one Arrow column holds as JSON.
            level = json.dumps(problem.level)
            writer.write({**vars(problem), "level": level, "source": source})
        writer.finalize()
    return ProblemTable(Dataset.from_file(str(path)), drops)


def join(tables: Sequence[ProblemTable]) -> ProblemTable:
    """The rows of several tables that count together, one after the other."""
    return ProblemTable(concatenate_datasets([table.rows for table in tables]), tables[0].drops)
