"""Fetch public sets at their pinned revisions into data/raw, where `prepare` can read them.

Not a stage of the DAG: it needs the network, and what it writes is an input.
"""

from pathlib import Path

import click


@click.command(help=__doc__)
@click.argument("names", nargs=-1, required=True)
@click.option(
    "--raw",
    type=click.Path(path_type=Path),
    default=Path("data/raw"),
    show_default=True,
    help="Writes one JSONL file for each set.",
)
def main(names: tuple[str, ...], raw: Path) -> None:
    """Fetch each of `names`."""
    from lib.problems.hub import fetch_known
    from lib.problems.sources import adapter_of

    for name in names:
        path, count = fetch_known(name, raw)
        click.echo(f"benchmarks set={name} rows={count} path={path} adapter={adapter_of(name)}")


if __name__ == "__main__":
    main()
