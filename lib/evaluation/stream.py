"""Completions on disk as they finish, so that a run that was killed resumes where it was.

A run writes to a folder that its fingerprint names: a hash of the settings, of what it reads, of
the versions and of the code. Rows come in chunks. A chunk counts once all of its rows are there, so
the half line and the half chunk of a kill are cut off and generated again: the result has the bytes
of a run that was never stopped. Changed settings name another folder.
"""

import fcntl
import itertools
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lib.artifacts import SCRATCH, fingerprint, stage_code
from lib.core.errors import UserError


def rows_fingerprint(settings: Mapping[str, Any], *, inputs: Mapping[str, Path]) -> str:
    """16 hex digits of everything that the rows depend on."""
    decisive = {"settings": settings, "code": stage_code("evaluate", {})}
    return fingerprint(decisive, inputs=inputs)


@contextmanager
def scratch_of(name: str, *, root: Path = SCRATCH / "evaluate") -> Iterator[Path]:
    """The folder of a run called `name`; it stays where the block is left by an error or a kill.

    Raises:
        UserError: another process is writing there.
    """
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"the same evaluation is running already and writes to {folder}; wait for it"
            ) from None
        yield folder
        shutil.rmtree(folder)


class Stream:
    """The rows of one benchmark in one mode, chunk by chunk.

    Args:
        path: JSONL file; what an earlier process left of it is kept as far as it is whole.
        sizes: rows of each chunk, in order.
    """

    def __init__(self, path: Path, sizes: Sequence[int]) -> None:
        self.path = path
        self.sizes = sizes
        path.parent.mkdir(parents=True, exist_ok=True)
        self.num_done = self._cut()

    @property
    def num_rows(self) -> int:
        """Rows that are there."""
        return sum(self.sizes[: self.num_done])

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add the next chunk; it is on the disk when this returns.

        Args:
            rows: with `place`, the number of their problem, and `sample`.
        """
        if len(rows) != self.sizes[self.num_done]:
            raise ValueError(f"chunk {self.num_done} has {len(rows)} rows")
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())
        self.num_done += 1

    def _cut(self) -> int:
        """Cut the file behind its last whole chunk; returns how many there are."""
        with self.path.open("a+b") as file:
            file.seek(0)
            lengths = (len(line) for line in file if line.endswith(b"\n"))
            ends = list(itertools.accumulate(lengths, initial=0))
            rows = list(itertools.accumulate(self.sizes, initial=0))
            num_done = sum(num_rows < len(ends) for num_rows in rows) - 1
            file.truncate(ends[rows[num_done]])
        return num_done

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows in the order of problem and sample, read one by one."""
        offset, index = 0, []
        with self.path.open("rb") as file:
            for line in file:
                row = json.loads(line)
                index.append((row["place"], row["sample"], offset))
                offset += len(line)
            for _, _, start in sorted(index):
                file.seek(start)
                row = json.loads(file.readline())
                del row["place"]
                yield row
