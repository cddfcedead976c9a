"""Several models on the same benchmarks: one table each, and their paired differences."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.artifacts import replacing, write_json
from lib.completions import UNGRADED, GradedCompletion, read_graded
from lib.report.comparisons import Comparison, compare_pair, comparison_metrics
from lib.report.inputs import Metrics, Run
from lib.report.markdown import markdown_table
from lib.report.tables import Table, breakdown, comparison_table, headline


@dataclasses.dataclass(frozen=True)
class Models:
    """Models that answered the same benchmarks, the one to compare with first."""

    metrics: Mapping[str, Metrics]
    comparisons: Sequence[Comparison]

    def tables(self) -> list[Table]:
        """By benchmark: the headline, differences from the first model, accuracy by subject."""
        run = _as_run(self.metrics)
        found: list[Table | None] = []
        for benchmark in run.benchmarks:
            found.append(headline(self.metrics, benchmark))
            differences = comparison_table(self.comparisons, benchmark)
            found.append(differences if differences.rows else None)
            by_subject = breakdown(run, benchmark, "by_subject")
            found.append(by_subject if by_subject and len(by_subject.rows) > 1 else None)
        return [table for table in found if table]


def read_models(metrics: Mapping[str, Metrics], completions: Mapping[str, Path]) -> Models:
    """Compare every model with the first, problem by problem.

    Args:
        metrics: by model.
        completions: by model, the file of its completions.
    """
    first, *others = metrics
    before = list(_graded(completions[first])) if others else []
    comparisons = [
        comparison
        for name in others
        for comparison in compare_pair(
            {first: before, name: list(_graded(completions[name]))}, before=first, after=name
        )
    ]
    return Models(metrics, comparisons)


def write_models(models: Models, folder: Path) -> None:
    """`table.md` for readers, `table.json` with the same as numbers."""
    lines = [line for table in models.tables() for line in _section(table)]
    with replacing(folder / "table.md") as partial:
        partial.write_text("\n".join(lines), encoding="utf-8")
    numbers: dict[str, Any] = {
        "metrics": models.metrics,
        "differences": comparison_metrics(models.comparisons),
    }
    write_json(folder / "table.json", numbers)


def _section(table: Table) -> Iterable[str]:
    return (f"**{table.title}**", "", markdown_table(table), "")


def _graded(path: Path) -> Iterable[GradedCompletion]:
    """The completions that have a grade, without their texts."""
    for row in read_graded(path):
        if row.decided_by != UNGRADED:
            yield dataclasses.replace(row, problem="", completion="")


def _as_run(metrics: Mapping[str, Metrics]) -> Run:
    """What `breakdown` reads."""
    return Run(
        checkpoints=tuple(metrics),
        starts={},
        benchmarks=tuple(dict.fromkeys(name for of in metrics.values() for name in of)),
        exported=next(iter(metrics)),
        metrics=metrics,
        completions={},
        curves={},
        skipped=frozenset(),
        stage_metrics={},
        provenance={},
    )
