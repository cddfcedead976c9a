"""Write params.yaml from a preset (a name from lib/presets, or the path of an overlay)."""

import itertools
import re
from pathlib import Path
from typing import Any

import click

from lib.core.errors import UserError
from lib.core.git import git
from lib.params import PARAMS_FILE, compose_preset, model_names, preset_names, preset_params

_FITTED = re.compile(r"^  (micro_batch_size|gradient_checkpointing):.*$", re.MULTILINE)
"""Lines that FIT=1 changes, with any value, like "  micro_batch_size: 8"."""


@click.command(help=__doc__)
@click.argument("preset", default="")
@click.option("--model", default="", help="Another model in the place of the preset's own.")
@click.option("--quick", is_flag=True, help="Five steps a phase, few problems; all else as it is.")
@click.option("--fit", is_flag=True, help="The largest micro-batches for this machine's GPU.")
@click.option("--card", default="", help="For a GPU of so many GB instead.")
def main(preset: str, model: str, quick: bool, fit: bool, card: str) -> None:
    """Replace params.yaml by a preset, unless it holds edits that would be lost."""
    if not preset:
        raise UserError(f"which preset? `make preset PRESET=...` with {', '.join(preset_names())}")
    options: dict[str, Any] = {"model": model, "quick": quick}
    if fit:
        from lib.planning.cards import card_memory, fitted

        if not (memory := card_memory(card)):
            raise UserError("FIT=1: no GPU is here; name the GB of one, as CARD=24")
        # Micro-batch sizes and gradient checkpointing, by section.
        options["changes"] = fitted(preset_params(preset, **options), memory)
    text = compose_preset(preset, **options)
    if PARAMS_FILE.exists() and not (_is_committed(PARAMS_FILE) or _is_preset(PARAMS_FILE)):
        raise UserError(
            "params.yaml has uncommitted edits; "
            "commit them, or drop them with `git checkout params.yaml`"
        )
    PARAMS_FILE.write_text(text, encoding="utf-8")
    click.echo(
        f"params.yaml is now {preset}; "
        "run `make fetch` if it names models or sets of the Hub, then `make all`"
    )


def _is_preset(path: Path) -> bool:
    """Return True if the file is a preset as this command writes it: no edit would be lost.

    The text is compared with that of every preset in lib/presets under every model, with and
    without --quick; a preset given as a path is not recognised.
    """
    # The lines that --fit changes are left out, since their values depend on the GPU.
    text = _FITTED.sub("", path.read_text(encoding="utf-8"))
    # '' is the preset's own model.
    options = itertools.product(preset_names(), ("", *model_names()), (False, True))
    return any(
        text == _FITTED.sub("", compose_preset(name, model=model, quick=quick))
        for name, model, quick in options
    )


def _is_committed(path: Path) -> bool:
    """Return True if some commit contains the file with its present content."""
    # Git's hash of the content. Outside a repository git returns '', here and below: False.
    blob = git("hash-object", str(path), strict=False)
    # A commit that added or removed this content, on any branch (--all) or in a merge (-m).
    log = ("log", "--all", "-m", "--max-count=1", "--format=%h", f"--find-object={blob}")
    return bool(git(*log, strict=False))


if __name__ == "__main__":
    main()
