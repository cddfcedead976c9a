"""List the experiments: state, changed params, rates."""

import click


@click.command(help=__doc__)
@click.option("--all", "everything", is_flag=True, help="List those of every commit.")
def main(everything: bool) -> None:
    """Print a table of DVC's experiments."""
    from lib.report.compare import experiments_lines

    click.echo("\n".join(experiments_lines(everything=everything)))
