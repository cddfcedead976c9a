"""Bring models and sets from the Hugging Face Hub.

Not a stage of the DAG: it needs the network, and what it writes is an input.
"""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads_params


@click.group(help=__doc__)
def main() -> None:
    """Choose what."""


@main.command("params")
@reads_params
def of_params(params_file: Path) -> None:
    """Bring what params.yaml names to data/hub: the model and every set.

    Where a commit is missing, the branch is looked up once and its commit written into params.yaml.
    An interrupted fetch resumes.
    """
    params = load_params(params_file)
    from lib.artifacts.hub import FETCHED, fetch, look_up
    from lib.planning.inputs import repositories_of, write_commits

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
    click.echo(f"fetch everything that params name is in {FETCHED}; run `make all`")


@main.command("sets")
@click.argument("names", nargs=-1, required=True)
def known_sets(names: tuple[str, ...]) -> None:
    """Bring public sets at their pinned revisions to data/raw, where `prepare` can read them."""
    from lib.problems.sources import adapter_of, fetch_known

    for name in names:
        path, count = fetch_known(name, Path("data/raw"))
        click.echo(f"benchmarks set={name} rows={count} path={path} adapter={adapter_of(name)}")


if __name__ == "__main__":
    main()
