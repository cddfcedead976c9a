"""Several models on the same benchmarks: one table each, and their paired differences."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lib.artifacts import replacing, write_json
from lib.artifacts.completions import UNGRADED, GradedCompletion, read_graded
from lib.report.comparisons import Comparison, compare_pair, comparison_metrics
from lib.report.inputs import Metrics
from lib.report.tables import breakdown, comparison_table, headline
from lib.report.text import Table, markdown_table


@dataclasses.dataclass(frozen=True)
class Models:
    """Models that answered the same benchmarks, the one to compare with first."""

    metrics: Mapping[str, Metrics]
    comparisons: Sequence[Comparison]

    def tables(self) -> Iterator[Table]:
        """By benchmark: the headline, differences from the first model, accuracy by subject."""
        for benchmark in dict.fromkeys(name for of in self.metrics.values() for name in of):
            yield headline(self.metrics, benchmark)
            differences = comparison_table(self.comparisons, benchmark)
            if differences.rows:
                yield differences
            by_subject = breakdown(self.metrics, benchmark, "by_subject")
            if by_subject and len(by_subject.rows) > 1:
                yield by_subject


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
    sections = [f"**{table.title}**\n\n{markdown_table(table)}\n" for table in models.tables()]
    with replacing(folder / "table.md") as partial:
        partial.write_text("\n".join(sections), encoding="utf-8")
    differences = comparison_metrics(models.comparisons)
    write_json(folder / "table.json", {"metrics": models.metrics, "differences": differences})


def _graded(path: Path) -> Iterator[GradedCompletion]:
    """The completions that have a grade, without their texts."""
    for row in read_graded(path):
        if row.decided_by != UNGRADED:
            yield dataclasses.replace(row, problem="", completion="")
