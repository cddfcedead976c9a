"""Write params.yaml from a preset (a name from lib/presets, or the path of an overlay)."""

import subprocess
from pathlib import Path

import click

from lib.core.errors import UserError
from lib.params import PARAMS_FILE, compose_preset, preset_names


@click.command(help=__doc__)
@click.argument("preset", default="")
@click.option("--quick", is_flag=True, help="Five steps a phase, few problems; all else as it is.")
def main(preset: str, quick: bool) -> None:
    """Replace params.yaml, unless it holds edits that would be lost."""
    if not preset:
        raise UserError(f"which preset? `make preset PRESET=...` with {', '.join(preset_names())}")
    text = compose_preset(preset, quick=quick)
    if PARAMS_FILE.exists() and not (_is_committed(PARAMS_FILE) or _is_preset(PARAMS_FILE)):
        raise UserError(
            "params.yaml has edits that no commit and no preset holds; "
            "commit it, or drop them with `git checkout params.yaml`"
        )
    PARAMS_FILE.write_text(text, encoding="utf-8")
    short = ", QUICK" if quick else ""
    click.echo(
        f"params.yaml is now {preset}{short}; "
        "run `make fetch` if it names models or sets of the Hub, then `make all`"
    )


def _is_preset(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return any(
        text == compose_preset(name, quick=quick)
        for name in preset_names()
        for quick in (False, True)
    )


def _is_committed(path: Path) -> bool:
    """Whether some commit holds the file as it is."""
    blob = subprocess.run(["git", "hash-object", path], capture_output=True, text=True, check=False)
    holding = ["git", "log", "--all", "-m", "--max-count=1", "--format=%h"]
    commits = subprocess.run(
        [*holding, f"--find-object={blob.stdout.strip()}"],
        capture_output=True,
        text=True,
        check=False,
    )
    return bool(commits.stdout.strip())


if __name__ == "__main__":
    main()
