"""Write params.yaml from a preset (a name, or the path of an overlay)."""

from pathlib import Path
from typing import Any

import click

from lib.artifacts import SCRATCH
from lib.core.errors import UserError
from lib.core.git import check_repository, git
from lib.params import PARAMS_FILE, compose_preset, preset_names, preset_params

WRITTEN = SCRATCH / "params.yaml"
"""The params.yaml that this command wrote last."""


preset_argument = click.argument(
    "preset",
    default="",
    shell_complete=lambda context, argument, incomplete: [
        name for name in preset_names() if name.startswith(incomplete)
    ],
)
"""A preset's name or the path of an overlay; '' if none is given."""


@click.command(help=__doc__)
@preset_argument
@click.option("--model", default="", help="Another model in place of the preset's: smollm2.")
@click.option(
    "--dpo", default="", type=click.Choice(["", "sft", "grpo"]), help="Add DPO, from SFT or GRPO."
)
@click.option("--quick", is_flag=True, help="Five steps a phase, few problems; all else as it is.")
@click.option("--fit", is_flag=True, help="Micro-batches for this machine's GPU, or its CPU.")
@click.option("--card", default="", help="The largest micro-batches for a GPU of this many GB.")
def main(preset: str, model: str, dpo: str, quick: bool, fit: bool, card: str) -> None:
    """Replace params.yaml by a preset, unless it holds edits that would be lost."""
    if not preset:
        raise UserError(f"which preset? `./reckon preset NAME` with {', '.join(preset_names())}")
    options: dict[str, Any] = {"model": model, "dpo": dpo, "quick": quick}
    if fit or card:
        from lib.planning.cards import card_memory, fitted, fitted_to_cpu

        params, memory = preset_params(preset, **options), card_memory(card)
        options["changes"] = fitted(params, memory) if memory else fitted_to_cpu(params)
    text = compose_preset(preset, **options)
    if PARAMS_FILE.exists() and not (_is_written(PARAMS_FILE) or _is_committed(PARAMS_FILE)):
        check_repository()
        raise UserError(
            "params.yaml has uncommitted edits; "
            "commit them, or drop them with `git checkout params.yaml`"
        )
    for path in (PARAMS_FILE, WRITTEN):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    click.echo(
        f"params.yaml is now {preset}; "
        "run `make fetch` if it names models or sets of the Hub, then `make all`"
    )


def _is_written(path: Path) -> bool:
    """Return True if the file is as this command wrote it: no edit would be lost."""
    return WRITTEN.exists() and WRITTEN.read_bytes() == path.read_bytes()


def _is_committed(path: Path) -> bool:
    """Return True if some commit contains the file with its present content."""
    # Git's hash of the content. Outside a repository git returns '', here and below: False.
    blob = git("hash-object", str(path), strict=False)
    # A commit that added or removed this content, on any branch (--all) or in a merge (-m).
    log = ("log", "--all", "-m", "--max-count=1", "--format=%h", f"--find-object={blob}")
    return bool(git(*log, strict=False))
