"""Print what a run would do, which does not run: steps, batches, rollouts, memory, disk, params.

With the name of a preset (or the path of an overlay), for that; otherwise for params.yaml.
"""

from pathlib import Path

import click

from lib.cli import reads_params
from lib.params import load_params, preset_params


@click.command(help=__doc__)
@reads_params
@click.argument("preset", default="")
def main(params_file: Path, preset: str) -> None:
    """Plan."""
    params = preset_params(preset) if preset else load_params(params_file)
    from lib.planning.plan import plan_lines

    for line in plan_lines(params):
        click.echo(line)


if __name__ == "__main__":
    main()
