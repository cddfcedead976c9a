"""The exported checkpoint of the workspace against the one that another revision exported."""

import dataclasses
import math
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.completions import GradedCompletion, read_graded
from lib.report.comparisons import MEASURES, Comparison, compare_pair
from lib.report.revision import cached_file
from lib.report.tables import Table, comparison_table
from lib.stats import Estimate, independent_difference

Diff = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""What DVC prints: file → dotted key → {"old", "new", "diff"}."""

ENDINGS = tuple(f".{mode}.{measure}" for mode, measure in MEASURES.items())
"""Endings of the numbers that checkpoints are judged by."""

WORKSPACE = "workspace"


@dataclasses.dataclass(frozen=True)
class Exported:
    """What a revision exported: its name for the reader, its commit and its checkpoint."""

    revision: str
    commit: str
    checkpoint: str


@dataclasses.dataclass(frozen=True)
class ExportedComparison:
    """The comparisons, and whether they are paired problem by problem."""

    paired: bool
    comparisons: tuple[Comparison, ...]


def compare_exported(
    old: Exported, new: str, *, diff: Diff, metrics: Path, graded: Path
) -> ExportedComparison:
    """Compare paired where the completions of both are at hand and answer the same problems.

    Otherwise by the committed metrics, as if the two had been measured on different problems:
    wider intervals, so that less is called worse.

    Args:
        old: what the revision exported.
        new: the checkpoint that the workspace exports.
        diff: of `dvc metrics diff --all --json`.
        metrics: folder of the checkpoints' metrics.
        graded: folder of the checkpoints' graded completions.
    """
    found = _paired(old, graded / f"{old.checkpoint}.jsonl", graded / f"{new}.jsonl")
    if found:
        return ExportedComparison(True, tuple(found))
    before = _estimates(diff.get(str(metrics / f"{old.checkpoint}.json"), {}), "old")
    after = _estimates(diff.get(str(metrics / f"{new}.json"), {}), "new")
    return ExportedComparison(False, tuple(_unpaired(old.revision, before, after)))


def exported_tables(found: ExportedComparison) -> tuple[Table, ...]:
    """One table a benchmark."""
    how = "paired" if found.paired else "unpaired"
    return tuple(
        dataclasses.replace(
            comparison_table(found.comparisons, benchmark),
            title=f"Exported checkpoint on {benchmark}, {how} differences in percentage points",
        )
        for benchmark in dict.fromkeys(comparison.benchmark for comparison in found.comparisons)
    )


def _paired(old: Exported, old_path: Path, new_path: Path) -> list[Comparison]:
    if not new_path.exists():
        return []
    with tempfile.TemporaryDirectory() as folder:
        restored = Path(folder) / old_path.name
        if not cached_file(old_path, commit=old.commit, to=restored):
            return []
        before = tuple(read_graded(restored))
    after = tuple(read_graded(new_path))
    if _problems(before) != _problems(after):
        return []
    return compare_pair(
        {old.revision: before, WORKSPACE: after}, before=old.revision, after=WORKSPACE
    )


def _problems(rows: Sequence[GradedCompletion]) -> Mapping[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in rows:
        found[row.benchmark, row.mode].add(row.problem_id)
    return found


def _unpaired(
    revision: str, before: Mapping[str, Estimate], after: Mapping[str, Estimate]
) -> list[Comparison]:
    comparisons = []
    for name in before:
        benchmark, mode, _ = name.rsplit(".", 2)
        if name in after:
            found = independent_difference(before=before[name], after=after[name])
            comparisons.append(
                Comparison(
                    before=revision, after=WORKSPACE, benchmark=benchmark, mode=mode, found=found
                )
            )
    return comparisons


def _estimates(entries: Mapping[str, Mapping[str, Any]], side: str) -> dict[str, Estimate]:
    """The numbers that a checkpoint is judged by, as one side of the diff has them."""
    values = {name: entry.get(side) for name, entry in entries.items()}
    found = {}
    for name, value in sorted(values.items()):
        if name.endswith(ENDINGS) and value is not None:
            setting = name.rpartition(".")[0]
            se = values.get(f"{name}_se")
            n = values.get(f"{setting}.n") or 1
            found[name] = Estimate(value, math.nan if se is None else se, int(n))
    return found
