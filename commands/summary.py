"""Print the result table and the paths of model and report."""

from collections.abc import Iterator
from pathlib import Path

import click

from lib.core.git import git
from lib.params import load_params
from stages.options import reads_params


@click.command(help=__doc__)
@reads_params
def main(params_file: Path) -> None:
    """Print the result table, changed tracked files, and the paths of model, report and studies."""
    params = load_params(params_file)
    from lib.report.inputs import load_run
    from lib.report.release import newer_stages, read_release, release_name
    from lib.report.write import summary_lines

    run = load_run(
        checkpoints=params.evaluate.checkpoints,
        starts=params.starts,
        benchmarks=params.evaluate.benchmarks,
        exported=params.export.checkpoint,
    )
    for line in summary_lines(run):
        click.echo(line)
    for line in git_lines():
        click.echo(line)
    click.echo("model:   data/models/export")
    click.echo("report:  reports/report.md, reports/report.html (`make serve`)")
    click.echo("studies: reports/studies/*/study.md")
    if release := read_release():
        newer = ", ".join(newer_stages(release)) or "none"
        click.echo(f"{release_name(release)}; newer here: {newer}")


def git_lines() -> Iterator[str]:
    """Yield one line if a run changed tracked files: their number, and what to do with them."""
    # Only files that a run writes: edited code is the user's own change. '' without a repository.
    modified = git("diff", "--name-only", "HEAD", "--", "reports", "dvc.lock", strict=False).split()
    if modified:
        plural = "s" * (len(modified) > 1)
        yield (
            f"git:     {len(modified)} modified tracked file{plural}; `make compare` shows both; "
            "`git checkout -- reports dvc.lock` restores, `git commit -am` keeps"
        )
