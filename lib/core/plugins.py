"""Load a user's plugins: Python objects named in params as `plugins/<role>/<file>.py:name`.

    role        named by                        what it is
    rewards     reward.extra                    a function of a `Rollout`, or with TRL's signature
    formats     prompt.format                   a `TaggedFormat` or `BoxedFormat`
    adapters    `adapter` of a source           a function from a row to the fields of a problem
    objectives  grpo.loss, grpo.advantage       a function of tensors

In dvc.yaml, a stage depends on the folders of the roles that it uses: a changed reward re-runs the
stages that compute rewards, not SFT.
`check` tries each plugin in params before any stage runs.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import itertools
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import thread as executors
from pathlib import Path
from typing import Any

import click

from lib.core.errors import UserError

# "plugins/rewards/examples.py:brevity"; group 1 is the role.
_NAME = re.compile(r"plugins/(rewards|formats|adapters|objectives)/[a-z0-9_]+\.py:[A-Za-z_]\w*")


def is_plugin(name: object, *, role: str = "") -> bool:
    """Return True if `name` has the form `plugins/<role>/<file>.py:name`; role '' allows all."""
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    return match is not None and role in ("", match[1])


def label(name: str) -> str:
    """Return the part after the last colon: "plugins/rewards/examples.py:brevity" -> "brevity"."""
    return name.rpartition(":")[2]


def plugin_hashes(settings: Any) -> dict[str, str]:
    """Hash the file of each plugin named in nested settings: {name: SHA-256, 16 hex digits}."""
    if isinstance(settings, Mapping):
        settings = tuple(settings.values())
    if isinstance(settings, list | tuple):
        return {name: digest for each in settings for name, digest in plugin_hashes(each).items()}
    if not is_plugin(settings):
        return {}
    return {settings: hashlib.sha256(_file_of(settings).read_bytes()).hexdigest()[:16]}


def _file_of(name: str) -> Path:
    """Return the file of a plugin; raise UserError if it is missing."""
    file = Path(name.partition(":")[0])
    if not file.is_file():
        raise UserError(f"{name}: {file} is missing; write it, or change params.yaml")
    return file


@functools.cache
def load_plugin(name: str) -> Any:
    """Import a plugin's file and return the object named after the colon.

    Raises:
        UserError: no such file or name, an error in the file, or an import of another plugin.
    """
    file = _file_of(name)
    with guarded(name):
        # Checked in the source text, since an import would already run the other file.
        _refuse_siblings(file)
        # The module is named by the whole path: files of two roles may have the same name.
        spec = importlib.util.spec_from_file_location("_".join(file.with_suffix("").parts), file)
        assert spec and spec.loader
        # Added to sys.modules before it runs: dataclasses look up their own module there.
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    if not hasattr(module, label(name)):
        public = [each for each in vars(module) if not each.startswith("_")]
        raise UserError(f"{name}: {file} has no `{label(name)}`; it has {', '.join(public)}")
    return getattr(module, label(name))


TIMEOUT_VARIABLE = "PLUGIN_TIMEOUT_S"
"""Environment variable with the time limit of a call in seconds: 600 by default, 0 for none. It is
no param: it can end a run, but changes no result."""


@contextlib.contextmanager
def guarded(name: str, *, inputs: str = "") -> Iterator[None]:
    """Turn any failure of the plugin `name` within the block into a one-line error.

    The plugin is not sandboxed.

    Args:
        inputs: the arguments of the call as text for the message; '' for none.

    Raises:
        UserError: the plugin raises or exits, takes longer than the limit, changes the working
            directory, or leaves a thread running.
    """
    file, folder, threads = Path(name.partition(":")[0]), Path.cwd(), set(threading.enumerate())
    call = inputs and f", called with {inputs}"  # '' if there are no inputs
    try:
        with _time_limit(name):
            yield
        # All paths of the pipeline are relative to the checkout.
        if Path.cwd() != folder:
            raise UserError("changed the working directory; use absolute paths instead")
        for thread in {*threading.enumerate()} - threads:
            if _is_running(thread, file):
                raise UserError(f"left the thread `{thread.name}` running; join it")
    except KeyboardInterrupt:
        raise
    # BaseException: `sys.exit()` in a plugin would end the stage with exit code 0.
    except BaseException as error:
        os.chdir(folder)  # the plugin may have changed it
        raise UserError(f"{name}: {_where(error, file)}{call}") from error


MAX_RINGS = 3
"""Number of timeout errors that a plugin may catch before the process is ended. One is raised each
second."""


class PluginTimeoutError(BaseException):
    """A call's time limit is over. Not an `Exception`: plugins may have `except Exception`."""


@contextlib.contextmanager
def _time_limit(name: str) -> Iterator[None]:
    """Raise PluginTimeoutError in the block after the time limit; main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield  # without a limit: signals reach the main thread only
        return
    seconds = float(os.environ.get(TIMEOUT_VARIABLE) or 600)
    fault = f"no result after {seconds:g} s ({TIMEOUT_VARIABLE})"
    num_alarms = itertools.count(1)

    def on_alarm(*_: object) -> None:
        """Handle SIGALRM: raise the error, or end the process if it was caught too often."""
        if next(num_alarms) > MAX_RINGS:
            # A plugin that retries under a bare `except:` catches every error, so only ending the
            # process helps. Files get their names when complete: none is left half-written.
            click.echo(
                f"Error: {name}: {fault}, and it caught the error {MAX_RINGS} times", err=True
            )
            os._exit(1)
        raise PluginTimeoutError(fault)

    outer_handler, start = signal.signal(signal.SIGALRM, on_alarm), time.monotonic()
    # The timer fires again each second: a bare `except:` in the plugin swallows the first error.
    # `setitimer` returns the timer that it replaces, that of an outer limit, or 0. 0 s starts none.
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, outer_handler)
        if remaining:
            # Start the outer limit's timer again with the time it has left; at least 1 ms, since 0
            # would stop it.
            elapsed = time.monotonic() - start
            signal.setitimer(signal.ITIMER_REAL, max(remaining - elapsed, 1e-3), interval)


def _is_running(thread: threading.Thread, file: Path) -> bool:
    """Return True if a thread that the plugin started must not stay: it is alive after one more
    second, and runs the plugin's code or would keep the process from ending.
    """
    # No frame: the thread has ended.
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return False
    stack = traceback.extract_stack(frame)
    # Daemons and the workers of thread pools may stay, as long as none of the plugin's code runs in
    # them: Python ends them with the process. Any other thread would keep it from ending.
    pool_code = executors.__file__
    blocks_exit = not thread.daemon and all(each.filename != pool_code for each in stack)
    if not (blocks_exit or _lines(stack, file)):
        return False
    thread.join(1)
    return thread.is_alive()


def _lines(frames: traceback.StackSummary, file: Path) -> list[int | None]:
    """Return the line numbers of the frames in the plugin's file, the innermost last."""
    # A frame has the absolute path; its last three parts are plugins/<role>/<file>.py.
    return [frame.lineno for frame in frames if Path(frame.filename).parts[-3:] == file.parts]


def _where(error: BaseException, file: Path) -> str:
    """Format an exception with its innermost line in the plugin's file.

    Example: "plugins/rewards/examples.py:9: ZeroDivisionError: division by zero".
    """
    if isinstance(error, UserError):
        return error.message
    # A file that does not parse has no frame in the traceback.
    if isinstance(error, SyntaxError):
        return f"{file}:{error.lineno}: {error.msg}"
    # The list's last entry is the innermost line. It is 1 if no frame is in the file, as for a call
    # with wrong arguments.
    line = [1, *_lines(traceback.extract_tb(error.__traceback__), file)][-1]
    return f"{file}:{line}: {type(error).__name__}: {' '.join(str(error).split())}"


def _refuse_siblings(file: Path) -> None:
    """Refuse a plugin that imports from plugins/: provenance would not record the other file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Import):
            modules = [each.name for each in node.names]
        else:
            # A relative import (level > 0), such as `from . import x`, is from plugins/ too.
            modules = ["plugins" if node.level else str(node.module)]
        if any(module.partition(".")[0] == "plugins" for module in modules):
            raise UserError(
                f"{file}:{node.lineno}: imports another plugin, whose changes would be in no "
                "provenance; keep a plugin in one file"
            )
