"""Load a user's plugins: Python objects named in params as `plugins/<role>/<file>.py:name`.

    role        named by                        what it is
    rewards     reward.extra                    a function of a `Rollout`, or with TRL's signature
    formats     prompt.format                   a `TaggedFormat` or `BoxedFormat`
    adapters    `adapter` of a source           a function from a row to the fields of a problem
    objectives  grpo.loss, grpo.advantage       a function of tensors

A stage depends on the plugins that its params name: a changed reward re-runs the stages that
compute rewards, not SFT.
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
    # Group 1 of `_NAME` is the role.
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    return match is not None and role in ("", match[1])


def label(name: str) -> str:
    """Return the part after the last colon: "plugins/rewards/examples.py:brevity" -> "brevity"."""
    return name.rpartition(":")[2]


def plugin_hashes(settings: Any) -> dict[str, str]:
    """Hash the file of each plugin named anywhere in `settings`, nested mappings and lists.

    Returns {name of the plugin: first 16 hex digits of the file's SHA-256}. The keys of mappings
    and values that are no plugin's name are ignored.
    """
    if isinstance(settings, Mapping):
        settings = tuple(settings.values())
    if isinstance(settings, list | tuple):
        hashes: dict[str, str] = {}
        for value in settings:
            hashes |= plugin_hashes(value)
        return hashes
    if not is_plugin(settings):
        return {}
    return {settings: hashlib.sha256(_file_of(settings).read_bytes()).hexdigest()[:16]}


def _file_of(name: str) -> Path:
    """Return the file of a plugin; raise UserError if it is missing.

    "plugins/rewards/examples.py:brevity" -> plugins/rewards/examples.py.
    """
    file = Path(name.partition(":")[0])
    if not file.is_file():
        raise UserError(f"{name}: {file} is missing; write it, or change params.yaml")
    return file


@functools.cache
def load_plugin(name: str) -> Any:
    """Import a plugin's file and return the object named after the colon; cached by name.

    Raises:
        UserError: no such file or name, an error in the file, or an import of another plugin.
    """
    file = _file_of(name)
    # `guarded` turns any exception of the file's own code into a UserError.
    with guarded(name):
        # Checked in the source text, since an import would already run the other file.
        _refuse_imports_of_plugins(file)
        # The module is named by the whole path: files of two roles may have the same name.
        spec = importlib.util.spec_from_file_location("_".join(file.with_suffix("").parts), file)
        assert spec and spec.loader
        # Added to sys.modules before it runs: dataclasses look up their own module there.
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    # `label(name)`: the part after the colon.
    if not hasattr(module, label(name)):
        public = [attribute for attribute in vars(module) if not attribute.startswith("_")]
        raise UserError(f"{name}: {file} has no `{label(name)}`; it has {', '.join(public)}")
    return getattr(module, label(name))


TIMEOUT_VARIABLE = "PLUGIN_TIMEOUT_S"
"""Environment variable with the time limit of a call in seconds: 600 by default, 0 for none. It is
no param: it can end a run, but changes no result."""


@contextlib.contextmanager
def guarded(name: str, *, inputs: str = "") -> Iterator[None]:
    """Run the block, which calls the plugin `name`; turn any failure into a one-line UserError.

    The plugin is not sandboxed.

    Args:
        inputs: the arguments of the call as text for the message; '' for none.

    Raises:
        UserError: the plugin raises or exits, takes longer than the limit, changes the working
            directory, or leaves a thread running.
    """
    file, folder = Path(name.partition(":")[0]), Path.cwd()
    threads_before = set(threading.enumerate())
    call = f", called with {inputs}" if inputs else ""
    try:
        # Raises PluginTimeoutError in the block.
        with _time_limit(name):
            yield
        # All paths of the pipeline are relative to the checkout.
        if Path.cwd() != folder:
            raise UserError("changed the working directory; use absolute paths instead")
        for thread in set(threading.enumerate()) - threads_before:
            if _is_left_running(thread, file):
                raise UserError(f"left the thread `{thread.name}` running; join it")
    except KeyboardInterrupt:  # Ctrl-C comes from the user, not from the plugin
        raise
    # Also the two errors raised above, which get the plugin's name here. BaseException, since
    # `sys.exit()` in a plugin would end the stage with exit code 0.
    except BaseException as error:
        os.chdir(folder)  # the plugin may have changed it
        raise UserError(f"{name}: {_error_with_line(error, file)}{call}") from error


MAX_ALARMS = 3
"""Number of timeout errors that a plugin may catch before the process is ended. One is raised each
second."""


class PluginTimeoutError(BaseException):
    """A call's time limit is over. Not an `Exception`: plugins may have `except Exception`."""


@contextlib.contextmanager
def _time_limit(name: str) -> Iterator[None]:
    """Raise PluginTimeoutError in the block once it has run longer than the time limit.

    The limit is in seconds, from the environment variable `TIMEOUT_VARIABLE`; 0 is no limit. Blocks
    may be nested: the process has only one timer, so after the inner block, the outer block's timer
    is set to the time that it has left. Outside the main thread there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python delivers signals to the main thread only
        return
    seconds = float(os.environ.get(TIMEOUT_VARIABLE) or 600)
    fault = f"no result after {seconds:g} s ({TIMEOUT_VARIABLE})"
    alarm_numbers = itertools.count(1)

    def on_alarm(*_: object) -> None:
        """Handle SIGALRM: raise the error, or end the process if the plugin caught it too often."""
        # 1 for the block's first alarm, 2 for the second, and so on.
        if next(alarm_numbers) > MAX_ALARMS:
            # A plugin that retries under a bare `except:` catches every error, so only ending the
            # process helps. Files get their names when complete: none is left half-written.
            click.echo(
                f"Error: {name}: {fault}, and it caught the error {MAX_ALARMS} times", err=True
            )
            os._exit(1)
        raise PluginTimeoutError(fault)

    outer_handler = signal.signal(signal.SIGALRM, on_alarm)
    start = time.monotonic()
    # First alarm after `seconds` (0 starts no timer), then one each second, in case a bare
    # `except:` in the plugin swallows the first error. `setitimer` returns the remaining seconds
    # and the interval of the timer that it replaces, which is an outer block's: (0, 0) without one.
    outer_remaining, outer_interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # stops the timer
        signal.signal(signal.SIGALRM, outer_handler)
        if outer_remaining:
            # Start the outer block's timer again with the time it has left; at least 1 ms, since 0
            # would stop it.
            left = max(outer_remaining - (time.monotonic() - start), 1e-3)
            signal.setitimer(signal.ITIMER_REAL, left, outer_interval)


def _is_left_running(thread: threading.Thread, file: Path) -> bool:
    """Return True if a thread that a plugin's call started is still alive, and is a fault.

    It is a fault if it runs the code in the plugin's `file`, or would keep the process from ending.
    Such a thread gets one more second to end.
    """
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:  # the thread has ended
        return False
    stack = traceback.extract_stack(frame)
    # Python ends daemons and the workers of thread pools with the process. Any other thread would
    # keep the process from ending.
    is_pool_worker = any(each.filename == executors.__file__ for each in stack)
    blocks_exit = not (thread.daemon or is_pool_worker)
    # The line numbers of the thread's frames in the plugin's file; empty if there are none.
    runs_plugin_code = bool(_lines_in(file, stack))
    if not (blocks_exit or runs_plugin_code):
        return False
    thread.join(1)  # seconds
    return thread.is_alive()


def _lines_in(file: Path, frames: traceback.StackSummary) -> list[int | None]:
    """Return the line numbers of the frames in the plugin's file, the innermost last."""
    # A frame has the absolute path; its last three parts are plugins/<role>/<file>.py.
    return [frame.lineno for frame in frames if Path(frame.filename).parts[-3:] == file.parts]


def _error_with_line(error: BaseException, file: Path) -> str:
    """Format an exception with its innermost line in the plugin's file.

    Example: "plugins/rewards/examples.py:9: ZeroDivisionError: division by zero".
    """
    # A UserError is written for users; it needs no line.
    if isinstance(error, UserError):
        return error.message
    # A file that does not parse has no frame in the traceback.
    if isinstance(error, SyntaxError):
        return f"{file}:{error.lineno}: {error.msg}"
    lines = _lines_in(file, traceback.extract_tb(error.__traceback__))
    # The last line is the innermost one. A call with wrong arguments has no frame in the file: the
    # message then names line 1.
    line = lines[-1] if lines else 1
    return f"{file}:{line}: {type(error).__name__}: {' '.join(str(error).split())}"


def _refuse_imports_of_plugins(file: Path) -> None:
    """Raise UserError if a plugin's source imports from plugins/.

    Provenance would not record the imported file.
    """
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Import):
            modules = [each.name for each in node.names]
        else:
            # A relative import (level > 0), such as `from . import x`, is from plugins/ too. Only
            # there can `module` be None.
            modules = ["plugins" if node.level else str(node.module)]
        if any(module.partition(".")[0] == "plugins" for module in modules):
            raise UserError(
                f"{file}:{node.lineno}: imports another plugin, whose changes would be in no "
                "provenance; keep a plugin in one file"
            )
