"""Compare the workspace with a git revision: params, the exported model with its noise, curves.

Exit code 1 when the exported model is worse than that of the revision by more than chance explains.
Outside the DAG.
"""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads, reads_params, writes


@click.command(help=__doc__)
@reads_params
@click.option("--base", default="HEAD", show_default=True, help="A revision or an experiment.")
@click.option("--md", is_flag=True, help="Print Markdown, for a pull request.")
@click.option("--all", "everything", is_flag=True, help="Every param and set that differs.")
@click.option("--experiments", is_flag=True, help="List the experiments, and compare nothing.")
@reads("--metrics", "reports/metrics", "the numbers of every stage")
@writes("--plots", "data/scratch/compare", "both runs' curves, one above the other, as HTML")
@click.pass_context
def main(
    context: click.Context,
    params_file: Path,
    base: str,
    md: bool,
    everything: bool,
    experiments: bool,
    metrics: Path,
    plots: Path,
) -> None:
    """Print the comparison."""
    params = load_params(params_file)
    from lib.report.compare import compare_with, experiments_table
    from lib.report.text import table_lines

    if experiments:
        click.echo("\n".join(table_lines(experiments_table())))
        return
    comparison = compare_with(
        base,
        metrics=metrics,
        graded=Path("data/graded"),
        plots=plots,
        headline=params.evaluate.benchmarks[0],
        everything=everything,
    )
    for line in comparison.lines(markdown=md):
        click.echo(line)
    context.exit(1 if comparison.alarms else 0)


if __name__ == "__main__":
    main()
