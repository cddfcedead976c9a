"""Show how a file's rows are read, and name the file in params.yaml.

`./reckon data data/raw/mine.jsonl` only shows; `--as sft,grpo` trains on the file, and
`--as benchmark NAME` evaluates on it.
"""

from pathlib import Path

import click

from lib.core.errors import UserError
from lib.params import PARAMS_FILE, load_params
from lib.params.data import under_raw

SETS = ("sft", "grpo")


@click.command(help=__doc__)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--as", "role", default="", help="sft, grpo, both as sft,grpo, or benchmark NAME.")
@click.option("--split", default="", help="One of a folder's splits.")
@click.argument("name", default="")
def main(file: Path, role: str, split: str, name: str) -> None:
    """Print a preview; with a role, write the source into params.yaml."""
    try:
        under_raw(str(file))
    except ValueError as error:
        raise UserError(str(error)) from error
    sets = [] if role == "benchmark" else list(filter(None, role.split(",")))
    if not set(sets) <= set(SETS) or (role == "benchmark") != bool(name):
        raise UserError(f"--as {role} {name}: expected sft, grpo, sft,grpo or benchmark NAME")
    from lib.problems.preview import preview, write_source

    bare = "sft" not in sets or load_params().prepare.sft.bare_answers
    shown = preview(file, split=split, bare_answers=bare)
    for line in shown.lines():
        click.echo(line)
    if sets or name:
        write_source(shown.source, sets=sets, benchmark=name)
        click.echo(f"written into {PARAMS_FILE} as {role} {name}".rstrip() + "; next: `make repro`")
