"""Print the result table, and where the model and the report are. Outside the DAG.

Params: evaluate (checkpoints, benchmarks), export (checkpoint), dpo (init).
"""

import subprocess
from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads_params


@click.command(help=__doc__)
@reads_params
def main(params_file: Path) -> None:
    """Print the summary."""
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
    if modified := modified_files():
        click.echo(
            f"git:     {len(modified)} tracked files modified (another CPU rounds differently); "
            "`git checkout -- reports dvc.lock` restores them, `git commit -am` keeps them"
        )
    click.echo("model:   data/models/export")
    click.echo("report:  reports/report.md, reports/report.html (`make serve`)")
    click.echo("studies: reports/studies/index.html")


def modified_files() -> list[str]:
    """Of what a run writes, the files that git tracks and that differ from its last commit."""
    command = ["git", "diff", "--name-only", "HEAD", "--", "reports", "dvc.lock"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()


if __name__ == "__main__":
    main()
