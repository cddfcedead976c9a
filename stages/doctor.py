"""Say whether the current params can run on this machine, and if not, why (exit code 1)."""

from pathlib import Path

import click

from lib.cli import reads_params
from lib.params import load_params


@click.command(help=__doc__)
@reads_params
def main(params_file: Path) -> None:
    """Examine."""
    params = load_params(params_file)
    from lib.planning.doctor import can_run, doctor_lines, findings
    from lib.planning.machine import this_machine

    machine = this_machine()
    against = findings(params, machine)
    click.echo("\n".join(doctor_lines(machine, against)))
    if not can_run(against):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
