"""Compare params, rates and curves with a git revision.

Exits with 1 if the workspace's model is worse than the revision's beyond noise, or if no set is
measured on both sides. REVISION is a git revision or an experiment; default: HEAD.
"""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads, reads_params, writes


@click.command(help=__doc__)
@reads_params
@click.argument("revision", default="HEAD")
@click.option("--md", is_flag=True, help="Print Markdown, for a pull request.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="List all params and sets.",
)
@reads("--metrics", "reports/metrics", "the numbers of every stage")
# Git ignores data/scratch: the page is for reading only.
@writes("--plots", "data/scratch/compare", "a page with both runs' curves")
@click.pass_context
def main(
    context: click.Context,
    params_file: Path,
    revision: str,
    md: bool,
    everything: bool,
    metrics: Path,
    plots: Path,
) -> None:
    """Print the comparison; exit with 1 on a regression."""
    params = load_params(params_file)
    from lib.report.compare import compare_with

    comparison = compare_with(
        revision,
        metrics=metrics,
        # The graded completions. No option: DVC reads the same path from the revision.
        graded=Path("data/graded"),
        plots=plots,
        headline=params.evaluate.benchmarks[0],
        everything=everything,
    )
    for line in comparison.lines(markdown=md):
        click.echo(line)
    context.exit(1 if comparison.alarms else 0)
