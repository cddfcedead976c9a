"""Check the number of processes as a stage does before training; launchers start it in tests."""

import click

from lib.training.phase.launch import check_world_size, num_processes

check_world_size()
click.echo(f"world size {num_processes()}\n", nl=False)
