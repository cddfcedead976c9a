"""Write the report from what the stages wrote: Markdown, figures, one HTML page.

Params: evaluate (checkpoints), export (checkpoint), dpo (init), prompt (format).
"""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads, reads_params, writes


@click.command(help=__doc__)
@reads_params
@reads("--graded", "data/graded", "every graded completion, and their rates")
@reads("--base", "data/models/base", "the chat template of its tokenizer")
@reads("--metrics", "reports/metrics", "the numbers of every stage")
@reads("--rollouts", "data/rollouts", "completions of the steps of grpo, and of validation")
@reads("--curves", "reports/curves", "the training curves")
@reads("--provenance", "reports/provenance", "settings, versions, hashes")
@writes("--markdown", "reports/report.md", "the report for terminals and pull requests")
@writes("--figures", "reports/figures", "its figures as SVG")
@writes("--page", "reports/report.html", "the report with a rollout browser, one file")
@writes("--plots", "reports/plots", "the curves in one long format, for `dvc plots`")
@writes("--differences", "reports/metrics/report.json", "paired differences of checkpoints")
def main(
    params_file: Path,
    graded: Path,
    base: Path,
    metrics: Path,
    rollouts: Path,
    curves: Path,
    provenance: Path,
    markdown: Path,
    figures: Path,
    page: Path,
    plots: Path,
    differences: Path,
) -> None:
    """Run the stage."""
    params = load_params(params_file)
    from lib.report.inputs import load_run
    from lib.report.text import loud
    from lib.report.write import write_report

    run = load_run(
        checkpoints=params.evaluate.checkpoints,
        starts=params.starts,
        benchmarks=params.evaluate.benchmarks,
        exported=params.export.checkpoint,
        base=base,
        graded=graded,
        metrics=metrics,
        rollouts=rollouts,
        curves=curves,
        provenance=provenance,
    )
    report = write_report(
        run, markdown=markdown, figures=figures, page=page, plots=plots, metrics=differences
    )
    for line in loud(report.alarms):
        click.echo(line)
    click.echo(f"report figures={len(report.figures)} markdown={markdown} page={page}")


if __name__ == "__main__":
    main()
