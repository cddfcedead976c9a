"""The headline outside the report: what `make all` ends with."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lib.report.comparisons import Comparison, alarms, describe
from lib.report.inputs import Metrics
from lib.report.tables import headline
from lib.report.text import Table, loud, table_lines

ROWS = ("answer accuracy", "pass@", "pass^", "maj@", "format accuracy", "equations")
"""Beginnings of the rows that a reader looks for first."""


def summary_lines(
    metrics: Mapping[str, Metrics],
    *,
    comparisons: Sequence[Comparison],
    benchmark: str,
    skipped: frozenset[str],
    model: Path,
    report: Path,
) -> Iterator[str]:
    """The headline table, the gain of the last phase, and where model and report are.

    Args:
        metrics: by checkpoint, in the order of training.
        comparisons: of each checkpoint with the one before it.
        benchmark: the one that is the headline.
        skipped: phases that did nothing.
        model: the exported model.
        report: the report.
    """
    yield from table_lines(_headline_rows(headline(metrics, benchmark, skipped=skipped)))
    yield from _gains(metrics, comparisons, benchmark)
    yield from loud(alarms(comparisons, untrained=next(iter(metrics))))
    yield f"model:  {model}"
    yield f"report: {report}"


def _headline_rows(table: Table) -> Table:
    rows = tuple(row for row in table.rows if row[0].startswith(ROWS))
    return Table(f"{table.title}; %, ± standard error (≤, ≥: 95 %)", table.header, rows)


def _gains(
    metrics: Mapping[str, Metrics], comparisons: Sequence[Comparison], benchmark: str
) -> Iterator[str]:
    """What the last phase changed on `benchmark`."""
    last = list(metrics)[-1]
    for comparison in comparisons:
        if comparison.after == last and comparison.benchmark == benchmark:
            yield f"{comparison.before} → {comparison.after}: {describe(comparison)}"
