"""Check whether the current params can run on this machine.

Exits with 1 if they cannot, and tells why.
"""

from pathlib import Path

import click

from lib.core.git import check_repository, check_writable
from lib.params import load_params
from lib.params.load import read_yaml
from stages.options import reads_params


@click.command(help=__doc__)
@reads_params
@click.option("--files", is_flag=True, help="Check only git, params.yaml and dvc.lock.")
def main(params_file: Path, files: bool) -> None:
    """Print this machine and what stops the run; with --files, check what `dvc repro` reads."""
    if files:
        # DVC's own errors about these are less clear.
        check_repository()
        check_writable()
    params = load_params(params_file)
    if files:
        lock = params_file.with_name("dvc.lock")
        if lock.exists():
            read_yaml(lock)
        return
    from lib.planning.doctor import can_run, doctor_lines, findings, this_machine

    machine = this_machine()
    # Unlike the stage `check`, this also asks the Hub for models and sets that are not here yet.
    problems = findings(params, machine, asks_hub=True)
    click.echo("\n".join(doctor_lines(machine, problems)))
    if not can_run(problems):
        raise SystemExit(1)
