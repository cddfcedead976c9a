"""Print what a run would do: steps, batches, schedule, rollouts, memory and disk; nothing runs.

With the name of a preset (or the path of an overlay), for that; otherwise for params.yaml.
"""

from pathlib import Path

import click
from ruamel.yaml import YAML

from lib.cli import reads_params
from lib.params import compose_preset, load_params, parse_params


@click.command(help=__doc__)
@reads_params
@click.argument("preset", default="")
def main(params_file: Path, preset: str) -> None:
    """Plan."""
    if preset:
        params = parse_params(YAML(typ="safe").load(compose_preset(preset)), origin=preset)
    else:
        params = load_params(params_file)
    from lib.trainers.plan_words import plan_lines

    for line in plan_lines(params):
        click.echo(line)


if __name__ == "__main__":
    main()
