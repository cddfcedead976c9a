"""Check, before any other stage, all that can be known in a second: params, engines, inputs.

DVC removes what a stage wrote before it runs the stage. A mistake in params.yaml that a stage finds
itself has already cost the last good model; found here, everything is still in place. The file that
this writes never changes, so that no other stage re-runs because of it.

Plugins that params name are tried.

Params: all.
"""

from pathlib import Path

import click

from lib.core.errors import UserError
from lib.params import load_params
from stages.options import reads_params, writes

CHECKED = "params.yaml was checked before the stages that depend on this file.\n"


@click.command(help=__doc__)
@reads_params
@writes("--checked", "data/checked", "a file that is always the same")
def main(params_file: Path, checked: Path) -> None:
    """Run the stage."""
    params = load_params(params_file)
    from lib.planning.doctor import findings, this_machine

    problems = findings(params, this_machine())
    for problem in problems:
        if problem.weight != "certain":
            click.echo(f"check: {problem.text}", err=True)
    if reasons := [problem.text for problem in problems if problem.weight == "certain"]:
        lines = "\n".join(f"  {reason}" for reason in reasons)
        counted = "1 reason" if len(reasons) == 1 else f"{len(reasons)} reasons"
        raise UserError(f"this run would fail for {counted}:\n{lines}")
    checked.write_text(CHECKED, encoding="utf-8")


if __name__ == "__main__":
    main()
