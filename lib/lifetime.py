"""How long a stage lives: no longer than the `dvc` that started it, and one at a time.

DVC runs a stage as a child and, ended by SIGTERM, leaves it running; a second `dvc repro` would
then train beside the first.
"""

import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from lib.errors import UserError

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
def sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt, as Ctrl-C does, so that blocks are left in good order.

    Outside the main thread, where Python takes no signals, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
