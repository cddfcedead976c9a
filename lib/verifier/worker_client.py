"""Asks the symbolic worker: one subprocess a process, started when first needed.

Safe under threads (one question at a time), in pools (a forked child forgets its parent's worker
and starts its own; `subprocess` is allowed where `multiprocessing` forbids children) and inside an
event loop (it blocks for `TIMEOUT_S` on a free core). The clock is a backstop: limits on the
question refuse first (`lib.verifier.symbolic`), and `counters` tells whether they did. It is the
worker that counts its own CPU time, so that a busy machine does not grade differently, and that
its signal ends: there is none in this process.
"""

import atexit
import collections
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

TIMEOUT_S = 0.6
"""CPU time of one question; a worker that needs more ends itself and is replaced."""

PATIENCE_S = 30.0
"""Wall time of one question, and of the worker's start, on a machine that gives it no core."""

_ROOT = Path(__file__).resolve().parents[2]
_counts: collections.Counter[str] = collections.Counter()


def counters() -> dict[str, int]:
    """What this process asked so far, for provenance.

    `worker_calls`, `worker_starts`, `timeouts` (worker ended for lateness), `worker_failures`
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
    ask.cache_clear()


class WorkerLostError(RuntimeError):
    """The worker was too late, or ended: no decision, and none that may be kept."""


@functools.lru_cache(maxsize=4096)
def ask(reference: str, answer: str) -> tuple[bool, str]:
    """Whether two normalized texts are equal, and the step that decided.

    Raises:
        WorkerLostError: no answer in time; the question may be put again.
    """
    with _worker.lock:
        count("worker_calls")
        return _worker.ask(json.dumps([reference, answer]) + "\n")


def warm_up() -> None:
    """Start the worker now, without waiting for it."""
    with _worker.lock:
        _worker.start()


class _Worker:
    """The worker of this process, if there is one, and the lock around it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, question: str) -> tuple[bool, str]:
        """One question and its answer; a worker that fails is replaced for the next."""
        process = self.start()
        assert process.stdin is not None and process.stdout is not None
        backstop = threading.Timer(PATIENCE_S, process.kill)
        backstop.start()
        try:
            process.stdin.write(question.encode())
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        finally:
            backstop.cancel()
        if line.endswith(b"\n"):
            equal, step = json.loads(line)
            return bool(equal), str(step)
        late = process.wait() in (-signal.SIGPROF, -signal.SIGKILL)
        count("timeouts" if late else "worker_failures")
        self.start()
        raise WorkerLostError("timeout" if late else "worker failure")

    def start(self) -> subprocess.Popen[bytes]:
        """The worker, started if there is none."""
        if self.process is None or self.process.poll() is not None:
            self.stop()
            count("worker_starts")
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lib.verifier.symbolic", str(TIMEOUT_S)],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self.process

    def stop(self) -> None:
        """Kill the worker, if there is one, and close its pipes."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.communicate()


_worker = _Worker()
_inherited: list[_Worker] = []


def _forget() -> None:
    """In a forked child: the parent's worker is not ours to ask, to wait for or to stop."""
    global _worker
    _inherited.append(_worker)
    _worker = _Worker()
    ask.cache_clear()


os.register_at_fork(after_in_child=_forget)
atexit.register(lambda: _worker.stop())
