"""Print the plan of a run: steps, batches, memory, disk.

Of a preset (its name, or the path of an overlay) or, without one, of params.yaml. Nothing is run.
"""

from pathlib import Path

import click

from commands.preset import preset_argument
from lib.params import load_params, preset_params
from stages.options import reads_params


@click.command(help=__doc__)
@reads_params
@preset_argument
@click.option("--card", default="", help="GB of a GPU to fill; default: this machine's.")
def main(params_file: Path, preset: str, card: str) -> None:
    """Print the plan's lines and, where a GPU is known, the micro-batches that fill it."""
    params = preset_params(preset) if preset else load_params(params_file)
    from lib.planning.cards import card_memory, fit_lines
    from lib.planning.plan import plan_lines

    lines = list(plan_lines(params))
    if memory := card_memory(card):
        lines += fit_lines(params, memory)
    click.echo("\n".join(lines))
