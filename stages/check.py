"""Check everything that can be known in a second before any other stage: params, engines, inputs.

DVC removes a stage's outputs before it runs the stage. A mistake that only the stage itself finds
has already cost the last good model; found here, it has cost nothing. The output never changes, so
that it re-runs no other stage. Plugins named in params are loaded and tried.

Params: all.
"""

from pathlib import Path

import click

from lib.core.errors import UserError
from lib.params import load_params
from stages.options import reads_params, writes

# Constant text, so that DVC sees an unchanged dep in `prepare`.
CHECKED = "params.yaml was checked before the stages that depend on this file.\n"


@click.command(help=__doc__)
@reads_params
@writes("--checked", "data/checked", "a constant file")
def main(params_file: Path, checked: Path) -> None:
    """Report everything that would make the run fail; if nothing would, write a constant file."""
    params = load_params(params_file)
    # Imported after the params are checked: a typo is reported at once.
    from lib.planning.doctor import findings, this_machine

    problems = findings(params, this_machine())
    for problem in problems:
        # Only certain faults stop the run. The others are estimates of memory and disk, which may
        # be wrong, and doubts about the result.
        if problem.weight != "certain":
            click.echo(f"check: {problem.text}", err=True)
    if reasons := [problem.text for problem in problems if problem.weight == "certain"]:
        # All reasons at once: one run of `check` is enough to see them.
        raise UserError("\n  ".join(["this run would fail:", *reasons]))
    checked.write_text(CHECKED, encoding="utf-8")


if __name__ == "__main__":
    main()
