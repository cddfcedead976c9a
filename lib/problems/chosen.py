"""Benchmarks by name or path, for models that are measured outside the pipeline.

Nothing tracks these files, so any path will do: provenance holds their hashes.
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from lib.errors import UserError
from lib.problems.known import KNOWN
from lib.problems.places import RAW
from lib.problems.rows import RowFault
from lib.problems.schema import Problem, read_problems
from lib.problems.sources import Source, read_problems_of

PREPARED = Path("data/problems/benchmarks")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChosenSet:
    """A benchmark as it is asked.

    Attributes:
        path: what it was read from.
        adapter: what read its rows; '' for the pipeline's own records.
        num_repeated: problems left out because they are there twice.
    """

    name: str
    path: Path
    adapter: str
    problems: tuple[Problem, ...]
    num_repeated: int


def choose_set(
    wanted: str, *, raw: Path = RAW, prepared: Path = PREPARED, limit: int = 0
) -> ChosenSet:
    """The benchmark that a reader calls `wanted`.

    Args:
        wanted: a benchmark that `prepare` wrote, a known set that `make benchmarks` fetched, a
            path, or `name=path` for a copy of a known set elsewhere.
        raw: where `make benchmarks` writes.
        prepared: where `prepare` writes.
        limit: so many problems, the same ones each time; 0 for all.

    Raises:
        UserError: no such set (says how to get it), or a row that holds no problem.
    """
    name, path = _find(wanted, raw=raw, prepared=prepared)
    adapter = KNOWN[name].adapter if name in KNOWN else "table"
    own = path.parent == prepared
    read = list(read_problems(path) if own else _read(path, adapter))
    unique: dict[str, Problem] = {}
    for problem in read:
        unique.setdefault(problem.id, problem)
    kept = set(sorted(unique)[: limit or None])
    return ChosenSet(
        name=name,
        path=path,
        adapter="" if own else adapter,
        problems=tuple(problem for problem in unique.values() if problem.id in kept),
        num_repeated=len(read) - len(unique),
    )


def _find(wanted: str, *, raw: Path, prepared: Path) -> tuple[str, Path]:
    name, given, text = wanted.partition("=")
    path = Path(text if given else wanted)
    if given or path.suffix or len(path.parts) > 1:
        if not path.exists():
            raise UserError(f"benchmark `{wanted}`: {path} is missing")
        return _slug(name if given else path.stem), path
    own = prepared / f"{name}.jsonl"
    if own.is_file():
        return name, own
    fetched = raw / f"{name}.jsonl"
    if fetched.is_file():
        return name, fetched
    if name in KNOWN:
        raise UserError(
            f"benchmark `{name}`: {fetched} is missing; `make benchmarks SETS={name}` fetches it "
            f"from the Hub, and BENCHMARKS={name}=PATH reads a copy that is here already"
        )
    there = sorted(path.stem for path in prepared.glob("*.jsonl"))
    way = "" if there else "; `dvc repro prepare` makes those of params.yaml"
    names = ", ".join([*there, *KNOWN])
    raise UserError(f"no benchmark `{name}`; there are {names}, and any path{way}")


def _slug(text: str) -> str:
    """A name that can be part of a file's."""
    return re.sub(r"[^a-z0-9_-]+", "_", text.lower()).strip("_-") or "benchmark"


def _read(path: Path, adapter: str) -> Iterator[Problem]:
    for row, read in read_problems_of(Source(at=path, adapter=adapter), raw=Path("/")):
        if isinstance(read, RowFault):
            raise UserError(f"{row.place}: {read}; mend or remove the row")
        yield read
