"""Training problems that give a benchmark away: those that share a run of words with it.

A training problem is contaminated by a benchmark if any run of n (8) words of its text occurs in a
benchmark problem; a benchmark problem of fewer than n words is matched as a whole. Words are
lower-cased runs of `[a-z0-9]`, so that spacing, punctuation and case do not hide a leak.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from lib.problems.drops import Drops
from lib.problems.store import ProblemTable
from lib.problems.words import digest, ngrams, words

REASON = "contaminated"


@dataclasses.dataclass(frozen=True, eq=False)
class BenchmarkIndex:
    """The n-grams of one benchmark, 12 bytes each.

    Attributes:
        name: the benchmark's.
        num_problems: how many it has.
        hashes: [N] of every n-gram of every problem, ascending.
        rows: [N] the problem that each n-gram is of.
        size: words of an n-gram.
    """

    name: str
    num_problems: int
    hashes: NDArray[np.uint64]
    rows: NDArray[np.int32]
    size: int

    def hits(self, text: str) -> set[int]:
        """Benchmark rows that share an n-gram with `text`."""
        wanted = _hashes(text, size=self.size)
        starts = np.searchsorted(self.hashes, wanted, side="left")
        ends = np.searchsorted(self.hashes, wanted, side="right")
        found = starts < ends
        ranges = zip(starts[found], ends[found], strict=True)
        return {int(row) for start, end in ranges for row in self.rows[start:end]}

    def shared(self, text: str) -> str:
        """An n-gram of `text` that the benchmark has, '' for none."""
        grams = sorted(ngrams(words(text), size=self.size))
        return next((gram for gram in grams if self.hits(gram)), "")


def index_benchmark(name: str, texts: Iterable[str], *, size: int) -> BenchmarkIndex:
    """The n-grams of a benchmark's problem texts; hashes alone are kept."""
    hashes, rows = [np.empty(0, np.uint64)], [np.empty(0, np.int32)]
    for row, text in enumerate(texts):
        hashes.append(_hashes(text, size=size))
        rows.append(np.full(len(hashes[-1]), row, np.int32))
    order = np.argsort(joined := np.concatenate(hashes), kind="stable")
    return BenchmarkIndex(name, len(hashes) - 1, joined[order], np.concatenate(rows)[order], size)


def _hashes(text: str, *, size: int) -> NDArray[np.uint64]:
    return np.array([digest(gram) for gram in ngrams(words(text), size=size)], dtype=np.uint64)


@dataclasses.dataclass(frozen=True)
class Overlap:
    """How much a training set and a benchmark share.

    Attributes:
        train_rows: training problems that share an n-gram with the benchmark.
        benchmark_rows: benchmark problems that a training problem shares one with.
        benchmark_size: problems of the benchmark.
    """

    train_rows: int
    benchmark_rows: int
    benchmark_size: int

    def metrics(self) -> dict[str, int]:
        """Numbers for the metrics file."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Decontaminated:
    """What is left of a training set, and its overlap with each benchmark by name."""

    table: ProblemTable
    overlaps: dict[str, Overlap]


def decontaminate(
    table: ProblemTable, benchmarks: Sequence[BenchmarkIndex], *, drops: Drops
) -> Decontaminated:
    """Drop every problem that shares an n-gram with any benchmark."""
    kept: list[int] = []
    train_rows = dict.fromkeys((benchmark.name for benchmark in benchmarks), 0)
    hit: dict[str, set[int]] = {benchmark.name: set() for benchmark in benchmarks}
    for index, text in enumerate(table.column("problem")):
        clean = True
        for benchmark in benchmarks:
            if rows := benchmark.hits(text):
                clean = False
                train_rows[benchmark.name] += 1
                hit[benchmark.name] |= rows
        if clean:
            kept.append(index)
        else:
            _count(text, benchmarks, drops, row=table.rows[index]["id"])
    overlaps = {
        benchmark.name: Overlap(
            train_rows[benchmark.name], len(hit[benchmark.name]), benchmark.num_problems
        )
        for benchmark in benchmarks
    }
    return Decontaminated(table if len(kept) == len(table) else table.select(kept), overlaps)


def _count(text: str, benchmarks: Sequence[BenchmarkIndex], drops: Drops, *, row: str) -> None:
    shared = {benchmark.name: benchmark.shared(text) for benchmark in benchmarks}
    name, gram = next((name, gram) for name, gram in shared.items() if gram)
    drops.add(REASON, row=row, detail=f"shares with {name}: {gram}", text=text)
