"""What a stage does before it trains; started by launchers in tests."""

import click

from lib.trainers.launch import check_world_size, world_size

check_world_size()
click.echo(f"world size {world_size()}\n", nl=False)
