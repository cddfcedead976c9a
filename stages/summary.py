"""Print the result table, and the paths of the model and the report. Not a stage of the DAG.

Params: evaluate (checkpoints, benchmarks), export (checkpoint), dpo (init).
"""

from pathlib import Path

import click

from lib.core.git import git
from lib.params import load_params
from stages.options import reads_params


@click.command(help=__doc__)
@reads_params
def main(params_file: Path) -> None:
    """Print the result table, changed tracked files, and the paths of model and report."""
    params = load_params(params_file)
    from lib.report.inputs import load_run
    from lib.report.write import summary_lines

    run = load_run(
        checkpoints=params.evaluate.checkpoints,
        starts=params.starts,
        benchmarks=params.evaluate.benchmarks,
        exported=params.export.checkpoint,
    )
    for line in summary_lines(run):
        click.echo(line)
    # Only files that a run writes: edited code is the user's own change.
    modified = git("diff", "--name-only", "HEAD", "--", "reports", "dvc.lock", strict=False).split()
    if modified:
        click.echo(
            f"git:     {len(modified)} tracked files differ from the last commit; "
            "`make compare` shows both runs, `git commit -am` keeps this one, "
            "`git checkout -- reports dvc.lock` restores the other"
        )
    click.echo("model:   data/models/export")
    click.echo("report:  reports/report.md, reports/report.html (`make serve`)")
    click.echo("studies: reports/studies/index.html")


if __name__ == "__main__":
    main()
