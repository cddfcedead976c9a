"""Put the export on the Hugging Face Hub, as a private repository unless told otherwise.

The token is that of the environment (HF_TOKEN) and of nowhere else. Not a stage of the DAG.
"""

import os
from pathlib import Path

import click

from lib.core.errors import UserError
from lib.params import load_params
from stages.options import reads_params

TOKEN = "HF_TOKEN"


@click.command(help=__doc__)
@reads_params
@click.option("--repo", default="", help="Where to: owner/name.")
@click.option("--dry-run", is_flag=True, help="Print what would go there, and stop.")
@click.option("--public", is_flag=True, help="Make a new repository that anyone can read.")
@click.option("--models", type=click.Path(path_type=Path), default=Path("data/models"))
@click.option("--reports", type=click.Path(path_type=Path), default=Path("reports"))
def main(
    params_file: Path, repo: str, dry_run: bool, public: bool, models: Path, reports: Path
) -> None:
    """Push."""
    params = load_params(params_file)
    from lib.export.push import check_current, check_repo, collect, current_commit, push

    if repo or not dry_run:
        check_repo(repo)
    export = models / "export"
    check_current(
        export,
        provenance=reports / "provenance/export.json",
        checkpoint=models / params.export.checkpoint,
        settings=params.model_dump(mode="json"),
    )
    phase = params.export.checkpoint
    uploads = collect(export, reports=reports, phase=phase, commit=current_commit())
    for upload in uploads:
        click.echo(f"{upload.size:>14,}  {upload.path}")
    total = f"{len(uploads)} files, {sum(upload.size for upload in uploads):,} bytes"
    if dry_run:
        click.echo(f"{total} would go to {repo or 'the Hub'}; nothing was sent")
        return
    token = os.environ.get(TOKEN, "").strip()
    if not (token.isascii() and token.isprintable() and token):
        raise UserError(
            f"{TOKEN} is not set, or holds no token; it has to be one with write access "
            "(https://huggingface.co/settings/tokens). Look first: make push DRY_RUN=1"
        )
    click.echo(f"{total} went to {push(uploads, repo=repo, token=token, private=not public)}")


if __name__ == "__main__":
    main()
