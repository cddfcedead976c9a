"""The result table that the README shows, from the same tables as the report."""

from collections.abc import Mapping, Sequence

from lib.report.comparisons import Comparison, describe
from lib.report.inputs import Metrics
from lib.report.markdown import markdown_table
from lib.report.tables import headline
from lib.report.terminal import shown

START = "<!-- results: python -m stages.summary --readme -->"
END = "<!-- /results -->"


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
    tables = [shown(headline(metrics, benchmark)) for benchmark in benchmarks]
    gains = [
        f"- {comparison.before} → {comparison.after}: {describe(comparison)}"
        for comparison in comparisons
        if comparison.after == list(metrics)[-1] and comparison.benchmark == benchmarks[0]
    ]
    parts = [f"**{table.title}**\n\n{markdown_table(table)}" for table in tables]
    return "\n\n".join([*parts, "\n".join(gains)])


def with_results(readme: str, block: str) -> str:
    """`readme` with `block` between its two marks.

    Raises:
        ValueError: a mark is missing.
    """
    before, after = readme.index(START) + len(START), readme.index(END)
    return f"{readme[:before]}\n{block}\n{readme[after:]}"
