"""Git commands, and checks that this folder is a writable git repository."""

import os
import subprocess
from pathlib import Path

from lib.core.errors import UserError


def check_repository() -> None:
    """Check that this folder lies in a git repository: DVC needs one.

    Raises:
        UserError: it does not; names the command that creates one.
    """
    here = Path.cwd()
    if not any((folder / ".git").exists() for folder in (here, *here.parents)):
        raise UserError(
            f"{here} is not a git repository, and DVC needs one; "
            "run `git init && git add --all && git commit -m start`"
        )


def check_writable() -> None:
    """Check that this user may write here.

    Raises:
        UserError: the folder is read-only; names it.
    """
    here = Path.cwd()
    if not os.access(here, os.W_OK):
        raise UserError(
            f"{here} is read-only for this user, and a run writes there; "
            f"`git clone {here} <a folder of yours>` and run it in the clone"
        )


def git(*arguments: str, strict: bool = True) -> str:
    """Run a git command; return its stripped output.

    Args:
        strict: False returns git's output, mostly '', even if git fails or is not installed.

    Raises:
        UserError: there is no git or no repository, or git failed; quotes git's message, since for
            a repository of another user it names the remedy.
    """
    if strict:
        check_repository()
    try:
        process = subprocess.run(
            ["git", *arguments],
            # In English for any locale, since git's message becomes part of ours.
            env=os.environ | {"LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        if strict:
            raise UserError("git is not installed") from error
        return ""
    if strict and process.returncode:
        raise UserError(f"git: {' '.join(process.stderr.split())}")
    return process.stdout.strip()
