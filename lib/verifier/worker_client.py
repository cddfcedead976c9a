"""Asks the symbolic worker: one subprocess a process, started when first needed.

Safe under threads (one question at a time), in pools (a forked child forgets its parent's worker
and starts its own; `subprocess` is allowed where `multiprocessing` forbids children) and inside an
event loop (it blocks for `TIMEOUT_S` on a free core). No signal, no alarm. The clock is a backstop:
limits on the question refuse first (`lib.verifier.symbolic`), and `counters` tells whether they
did. It counts the worker's own CPU time, and not its start, so that a busy machine does not grade
differently.
"""

import atexit
import collections
import functools
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

TIMEOUT_S = 0.6
"""CPU time of one question; a worker that needs more is killed and replaced."""

PATIENCE_S = 10.0
"""Wall time of one question to a worker that the machine gives no core."""

START_TIMEOUT_S = 20.0
"""Wall time that a worker may take to start: about 0.3 s on an idle core."""

_ROOT = Path(__file__).resolve().parents[2]
_counts: collections.Counter[str] = collections.Counter()


def counters() -> dict[str, int]:
    """What this process asked so far, for provenance.

    `worker_calls`, `worker_starts`, `timeouts` (worker killed for lateness), `worker_failures`
    (ended by itself, or did not start) and `failures` (answers that met a fault of the verifier
    and count as wrong); 0 for none.
    """
    names = ("worker_calls", "worker_starts", "timeouts", "worker_failures", "failures")
    return {name: _counts[name] for name in names}


def count(name: str) -> None:
    """One more of `name`."""
    _counts[name] += 1


def reset_counters() -> None:
    """Start counting anew, and forget the answers so far."""
    _counts.clear()
    _ask.cache_clear()


class WorkerLostError(RuntimeError):
    """The worker was too late, or ended: no decision, and none that may be kept."""


def ask(reference: str, answer: str) -> tuple[bool, str]:
    """Whether two normalized texts are equal, and the step that decided.

    Raises:
        WorkerLostError: no answer in time; the question may be put again.
    """
    return _ask(reference, answer)


def warm_up() -> None:
    """Start the worker now, without waiting for it."""
    with _state.lock:
        _state.start()


@functools.lru_cache(maxsize=4096)
def _ask(reference: str, answer: str) -> tuple[bool, str]:
    state = _state
    with state.lock:
        _counts["worker_calls"] += 1
        return state.ask(json.dumps([reference, answer]) + "\n")


class _State:
    """The worker of this process, if there is one, and the lock around it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.ready = False

    def ask(self, question: str) -> tuple[bool, str]:
        """One question and its answer; a worker that fails is replaced for the next."""
        process = self.start()
        self.ready = self.ready or _line(process, START_TIMEOUT_S) == b"ready\n"
        line = self._answer(process, question) if self.ready else b""
        if line.endswith(b"\n"):
            equal, step = json.loads(line)
            return bool(equal), str(step)
        late = process.poll() is None
        _counts["timeouts" if late else "worker_failures"] += 1
        self.stop()
        self.start()
        raise WorkerLostError("timeout" if late else "worker failure")

    def _answer(self, process: subprocess.Popen[bytes], question: str) -> bytes:
        assert process.stdin is not None
        begun, before = time.monotonic(), _cpu_s(process)
        try:
            process.stdin.write(question.encode())
            process.stdin.flush()
        except BrokenPipeError:
            return b""
        line = _line(process, TIMEOUT_S)
        while not line.endswith(b"\n") and process.poll() is None:
            if _cpu_s(process) - before >= TIMEOUT_S or time.monotonic() - begun >= PATIENCE_S:
                break
            line += _line(process, TIMEOUT_S)
        return line

    def start(self) -> subprocess.Popen[bytes]:
        """The worker, started if there is none."""
        if self.process is None or self.process.poll() is not None:
            self.stop()
            _counts["worker_starts"] += 1
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lib.verifier.symbolic"],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self.process

    def stop(self) -> None:
        """Kill the worker, if there is one."""
        process, self.process, self.ready = self.process, None, False
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            _close(pipe)


def _cpu_s(process: subprocess.Popen[bytes]) -> float:
    """CPU seconds of a process so far; none where it has just ended."""
    try:
        times = psutil.Process(process.pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _close(pipe: object) -> None:
    try:
        pipe.close()  # type: ignore[attr-defined]
    except BrokenPipeError:
        # What was still to be written has no reader any more.
        return


def _line(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """The worker's next line, or what there is of it when time is up or the worker has ended."""
    assert process.stdout is not None
    deadline = time.monotonic() + timeout_s
    received = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not received.endswith(b"\n"):
            if not selector.select(max(deadline - time.monotonic(), 0)):
                break
            chunk = os.read(process.stdout.fileno(), 65_536)
            if not chunk:
                process.wait()
                break
            received += chunk
    return received


_state = _State()
_inherited: list[_State] = []


def _forget() -> None:
    """In a forked child: the parent's worker is not ours to ask, to wait for or to stop."""
    global _state
    _inherited.append(_state)
    _state = _State()
    _ask.cache_clear()


os.register_at_fork(after_in_child=_forget)
atexit.register(lambda: _state.stop())
