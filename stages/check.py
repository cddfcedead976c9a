"""Check everything that can be known in a second before any other stage: params, engines, inputs.

DVC removes a stage's outputs before it runs the stage. A mistake that only the stage itself finds
has already cost the last good model; found here, it has cost nothing. Plugins named in params are
loaded and tried. Each other stage depends on its code manifest, written here: only a change of the
code that it reaches re-runs it.

Params: all.
"""

import importlib
from pathlib import Path

import click

from lib.core.errors import UserError
from lib.params import load_params
from stages.options import SECTIONS, reads_params, writes


@click.command(help=__doc__)
@reads_params
@writes("--checked", "data/checked", "the code manifest of each other stage")
def main(params_file: Path, checked: Path) -> None:
    """Report everything that would make the run fail; if nothing would, write the manifests."""
    params = load_params(params_file)
    # Imported after the params are checked: a typo is reported at once.
    from lib.artifacts import replacing, write_json
    from lib.artifacts.code import stage_code
    from lib.planning.doctor import findings, this_machine

    problems = findings(params, this_machine())
    for problem in problems:
        # Only certain faults stop the run. The others are estimates of memory and disk, which may
        # be wrong, and doubts about the result.
        if problem.weight != "certain":
            click.echo(f"check: {problem.text}", err=True)
    if reasons := [problem.text for problem in problems if problem.weight == "certain"]:
        raise UserError("\n  ".join(["this run would fail:", *reasons]))
    with replacing(checked) as folder:
        # Importing the scripts fills SECTIONS.
        for script in Path(__file__).parent.glob("[!_]*.py"):
            importlib.import_module(f"stages.{script.stem}")
        for stage, sections in SECTIONS.items():
            settings = params.model_dump(include=sections)
            write_json(folder / f"code/{stage}.json", stage_code(stage, settings))


if __name__ == "__main__":
    main()
