"""Is this the Python that the lock describes?"""

import importlib.metadata
import re
from pathlib import Path

from lib.errors import UserError

LOCK = Path("requirements/cpu.txt")
DECISIVE = ("torch", "transformers", "trl", "peft", "datasets", "dvc")


def check_environment(lock: Path = LOCK) -> None:
    """Compare what is installed with what is locked, from metadata alone: no heavy import.

    Raises:
        UserError: a package is missing or of another version; says which, and what to run.
    """
    locked = dict(re.findall(r"^([a-z0-9-]+)==([^\s;]+)", lock.read_text("utf-8"), re.MULTILINE))
    wrong = [
        f"{name} {found or 'missing'} (locked: {locked[name]})"
        for name in DECISIVE
        if (found := _installed(name)) != locked[name]
    ]
    if wrong:
        raise UserError(
            f"this Python has {', '.join(wrong)}. "
            "Run `make setup`, then `make repro` or `PATH=.venv/bin:$PATH dvc repro`."
        )


def _installed(name: str) -> str | None:
    """Installed version without its build tag (torch's `+cpu`)."""
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None
