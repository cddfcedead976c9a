"""The headline outside the report: what `make all` ends with, and the README's result table."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lib.report.comparisons import Comparison, alarms, describe
from lib.report.inputs import Metrics
from lib.report.tables import headline
from lib.report.text import Table, loud, markdown_table, table_lines

ROWS = ("answer accuracy", "pass@", "pass^", "maj@", "format accuracy", "equations")
"""Beginnings of the rows that a reader looks for first."""

START = "<!-- results: python -m stages.summary --readme -->"
END = "<!-- /results -->"


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


def results_block(
    metrics: Mapping[str, Metrics],
    *,
    comparisons: Sequence[Comparison],
    benchmarks: Sequence[str],
) -> str:
    """One table per benchmark, and what the last phase changed on the first of them.

    Args:
        metrics: by checkpoint, in the order of training.
        comparisons: of each checkpoint with the one before it.
        benchmarks: the headline first.
    """
    tables = [_headline_rows(headline(metrics, benchmark)) for benchmark in benchmarks]
    gains = [f"- {gain}" for gain in _gains(metrics, comparisons, benchmarks[0])]
    parts = [f"**{table.title}**\n\n{markdown_table(table)}" for table in tables]
    return "\n\n".join([*parts, "\n".join(gains)])


def with_results(readme: str, block: str) -> str:
    """`readme` with `block` between its two marks.

    Raises:
        ValueError: a mark is missing.
    """
    before, after = readme.index(START) + len(START), readme.index(END)
    return f"{readme[:before]}\n{block}\n{readme[after:]}"


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
