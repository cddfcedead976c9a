"""Download public sets into data/raw.

At their pinned revisions. `prepare` can read them, and they are benchmarks of `./reckon evaluate`.
"""

from pathlib import Path

import click

from lib.core.errors import UserError


@click.command(help=__doc__)
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    """Write each set as JSONL."""
    from lib.params.data import known_sets
    from lib.problems.benchmarks import adapter_of, fetch_known

    if not names:
        raise UserError(
            f"which sets? `./reckon benchmarks NAME ...` with {', '.join(known_sets())}"
        )
    for name in names:
        path, count = fetch_known(name, Path("data/raw"))
        click.echo(f"benchmarks set={name} rows={count} path={path} adapter={adapter_of(name)}")
