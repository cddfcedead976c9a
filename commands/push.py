"""Upload the export to the Hugging Face Hub.

REPO is owner/name, created private unless --public. The token comes from the environment only
(HF_TOKEN).
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
@click.argument("repo", default="")
@click.option("--dry-run", is_flag=True, help="List the files, and upload nothing.")
@click.option("--public", is_flag=True, help="Create the repository public.")
@click.option("--models", type=click.Path(path_type=Path), default=Path("data/models"))
@click.option("--reports", type=click.Path(path_type=Path), default=Path("reports"))
def main(
    params_file: Path, repo: str, dry_run: bool, public: bool, models: Path, reports: Path
) -> None:
    """Upload the export and its reports if they are up to date, or list the files (--dry-run)."""
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
        click.echo(f"{upload.upload_info.size:>14,}  {upload.path_in_repo}")
    total = f"{len(uploads)} files, {sum(upload.upload_info.size for upload in uploads):,} bytes"
    if dry_run:
        click.echo(f"{total} would be uploaded to {repo or 'the Hub'}; nothing was sent")
        return
    token = os.environ.get(TOKEN, "").strip()
    # Other characters would make the HTTP header, and so the upload, fail without a clear message.
    if not (token.isascii() and token.isprintable() and token):
        raise UserError(
            f"{TOKEN} is not set or not a token; expected one with write access "
            "(https://huggingface.co/settings/tokens). To look first: ./reckon push --dry-run"
        )
    address = push(uploads, repo=repo, token=token, private=not public)
    click.echo(f"{total} uploaded to {address}")
