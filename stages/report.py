"""Write the report from the stages' files: Markdown, figures, one HTML page.

Params: evaluate (checkpoints, benchmarks), export (checkpoint), dpo (init).
"""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads, reads_code, reads_params, writes


@click.command(help=__doc__)
@reads_params
@reads_code("report", {"evaluate", "dpo", "export"})
@reads("--graded", "data/graded", "graded completions and their rates")
@reads("--base", "data/models/base", "the chat template of its tokenizer")
@reads("--metrics", "reports/metrics", "every stage's numbers")
@reads("--rollouts", "data/rollouts", "completions of training steps and validation")
@reads("--curves", "reports/curves", "the training curves")
@reads("--provenance", "reports/provenance", "settings, versions, hashes")
@writes("--markdown", "reports/report.md", "the report for terminals and pull requests")
@writes("--figures", "reports/figures", "its figures as SVG")
@writes("--page", "reports/report.html", "the report with a rollout browser, one file")
@writes("--plots", "reports/plots", "the curves in a long format, for `dvc plots`")
@writes("--differences", "reports/metrics/report.json", "paired differences between checkpoints")
def main(
    params_file: Path,
    metrics: Path,
    markdown: Path,
    figures: Path,
    page: Path,
    plots: Path,
    differences: Path,
    **folders: Path,
) -> None:
    """Write the report as Markdown and as a page, its figures, plots and paired differences."""
    params = load_params(params_file)
    from lib.report.inputs import load_run
    from lib.report.text import alarm_lines
    from lib.report.write import write_report

    run = load_run(
        checkpoints=params.evaluate.checkpoints,
        starts=params.starts,
        benchmarks=params.evaluate.benchmarks,
        exported=params.export.checkpoint,
        stage_metrics=metrics,
        **folders,
    )
    report = write_report(
        run, markdown=markdown, figures=figures, page=page, plots=plots, metrics=differences
    )
    # One for each checkpoint that is worse than the one it started from, beyond noise, and for each
    # training warning: red on a terminal. The report begins with the same sentences.
    for line in alarm_lines(report.alarms):
        click.echo(line)
    click.echo(f"report figures={len(report.figures)} markdown={markdown} page={page}")


if __name__ == "__main__":
    main()
