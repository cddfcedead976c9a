"""Bring what params.yaml names from the Hugging Face Hub to data/hub: the model and every set.

Not a stage of the DAG: it needs the network, and nothing after it does. Where a commit is missing,
the branch is looked up once and its commit written into params.yaml. An interrupted fetch resumes.
"""

from pathlib import Path

import click

from lib.cli import reads_params
from lib.params import load_params


@click.command(help=__doc__)
@reads_params
def main(params_file: Path) -> None:
    """Look up commits, state sizes, fetch."""
    params = load_params(params_file)
    from lib.artifacts.hub import FETCHED, fetch, look_up
    from lib.planning.fetch import repositories_of, write_commits

    for line in write_commits(params, path=params_file):
        click.echo(f"fetch {line}")
    repositories = repositories_of(load_params(params_file))
    missing = [each for each in repositories if not each.folder.is_dir()]
    sizes = [look_up(each)[1] for each in missing]
    for each, size in zip(missing, sizes, strict=True):
        click.echo(f"fetch {each.kind} {each}: {size / 1e9:.2f} GB")
    click.echo(
        f"fetch {len(missing)} of {len(repositories)} repositories, {sum(sizes) / 1e9:.2f} GB"
    )
    for each in missing:
        fetch(each)
        click.echo(f"fetch {each} is here")
    if repositories:
        click.echo(f"fetch everything that params name is in {FETCHED}; run `make all`")
    else:
        click.echo("fetch nothing: these params name no model and no set of the Hub")


if __name__ == "__main__":
    main()
