"""What a stage does before it trains; started by launchers in tests."""

import click

from lib.training.phase.launch import check_world_size, num_processes

check_world_size()
click.echo(f"world size {num_processes()}\n", nl=False)
