"""Ask git and DVC about another revision."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from lib.errors import UserError


def resolve_revision(name: str) -> str:
    """The commit that `name` means.

    Raises:
        UserError: git knows no such revision.
    """
    found = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise UserError(
            f"BASE={name}: git knows no such revision; `git log --oneline` lists those there are"
        )
    return found.stdout.strip()


def dvc_json(*arguments: str) -> dict[str, Any]:
    """Run DVC and parse what it prints.

    Raises:
        UserError: DVC failed; says what it said.
    """
    printed = run_dvc(*arguments, "--json")
    parsed: dict[str, Any] = json.loads(printed) if printed.strip() else {}
    return parsed


def cached_file(path: Path, *, commit: str, to: Path) -> bool:
    """Restore what `path` held at `commit` to `to`; False where DVC's cache has it no more."""
    try:
        run_dvc("get", ".", str(path), "--rev", commit, "--out", str(to))
    except UserError:
        return False
    return True


def run_dvc(*arguments: str) -> str:
    """Run DVC with this interpreter and return what it prints.

    Raises:
        UserError: DVC failed; says what it said.
    """
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = done.stderr.strip().splitlines() or ["no message"]
        raise UserError(f"`dvc {' '.join(arguments)}` failed: {reason[0]}")
    return done.stdout
