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
    from lib.planning.doctor import doctor_lines, findings
    from lib.planning.machine import this_machine

    machine = this_machine()
    for line in doctor_lines(params, machine):
        click.echo(line)
    if any(each.weight != "result" for each in findings(params, machine)):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
