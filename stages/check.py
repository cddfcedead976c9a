"""Check, before any other stage, all that can be known in a second: params, engines, inputs.

DVC removes what a stage wrote before it runs the stage. A mistake in params.yaml that a stage finds
itself has already cost the last good model; found here, everything is still in place. The file that
this writes never changes, so that no other stage re-runs because of it.

Plugins that params name are tried, and copied for the stages that use them.

Params: all.
"""

from pathlib import Path

import click

from lib.cli import reads, reads_params, writes
from lib.errors import UserError
from lib.params import load_params
from lib.plugins import copy_plugins

CHECKED = "params.yaml was checked before the stages that depend on this file.\n"


@click.command(help=__doc__)
@reads_params
@reads("--plugins", "plugins", "one's own parts")
@writes("--checked", "data/checked", "a file that is always the same")
@writes("--rewards", "data/plugins/rewards", "copies of the rewards that params name")
@writes("--formats", "data/plugins/formats", "copies of the prompt formats")
@writes("--adapters", "data/plugins/adapters", "copies of the adapters of sources")
@writes("--objectives", "data/plugins/objectives", "copies of the losses and advantages")
def main(params_file: Path, plugins: Path, checked: Path, **copies: Path) -> None:
    """Run the stage."""
    params = load_params(params_file)
    from lib.planning.doctor import findings, this_machine

    problems = findings(params, this_machine())
    for each in problems:
        if each.weight != "certain":
            click.echo(f"check: {each.text}", err=True)
    if reasons := [each.text for each in problems if each.weight == "certain"]:
        lines = "\n".join(f"  {reason}" for reason in reasons)
        raise UserError(f"this run would fail for {len(reasons)} reasons:\n{lines}")
    copy_plugins(params.model_dump(mode="json"), copies)
    checked.write_text(CHECKED, encoding="utf-8")


if __name__ == "__main__":
    main()
