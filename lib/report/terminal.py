"""The headline for the terminal: what `make all` ends with."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click

from lib.report.comparisons import Comparison, alarms, describe
from lib.report.inputs import Metrics
from lib.report.tables import Table, headline

SHOWN_ROWS = ("answer accuracy", "pass@", "maj@", "format accuracy", "equations")


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
    checkpoints = list(metrics)
    yield from table_lines(shown(headline(metrics, benchmark, skipped=skipped)))
    for comparison in comparisons:
        if comparison.after == checkpoints[-1] and comparison.benchmark == benchmark:
            yield f"{comparison.before} → {comparison.after}: {describe(comparison)}"
    yield from loud(alarms(comparisons, untrained=checkpoints[0]))
    yield f"model:  {model}"
    yield f"report: {report}"


def shown(table: Table) -> Table:
    """The rows that a reader looks for first."""
    rows = tuple(row for row in table.rows if row[0].startswith(SHOWN_ROWS))
    return Table(f"{table.title}; %, ± standard error", table.header, rows)


def table_lines(table: Table) -> Iterator[str]:
    """The table with aligned columns, numbers to the right."""
    rows = (table.header, *table.rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.header))]
    yield table.title
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  ".join(cells).rstrip()


def loud(sentences: Iterable[str]) -> Iterator[str]:
    """Sentences that must not be overlooked: red where the terminal has colours."""
    for sentence in sentences:
        yield click.style(f"!!! {sentence}", fg="red", bold=True)
