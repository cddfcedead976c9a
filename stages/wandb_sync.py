"""Send the W&B runs that were recorded offline. Outside the DAG; it needs the network."""

import os
import subprocess
import sys
from pathlib import Path

import click

from lib.errors import UserError


@click.command(help=__doc__)
def main() -> None:
    """Find them below WANDB_DIR, or here, and hand them to W&B's own command."""
    folder = Path(os.environ.get("WANDB_DIR") or ".") / "wandb"
    runs = sorted(folder.glob("offline-run-*"))
    if not runs:
        raise UserError(
            f"no offline run in {folder}; `WANDB_MODE=offline make repro` records the stages that "
            "train"
        )
    click.echo(f"wandb-sync runs={len(runs)} folder={folder}")
    command = [sys.executable, "-m", "wandb", "sync", *map(str, runs)]
    if subprocess.run(command, check=False).returncode:
        raise UserError("wandb-sync: W&B refused, see above; `wandb login` if it does not know you")


if __name__ == "__main__":
    main()
