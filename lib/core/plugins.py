"""Load a user's plugins: Python objects named in params as `plugins/<role>/<file>.py:name`.

    role        named by                        what it is
    rewards     reward.extra                    a function of a `Rollout`, or with TRL's signature
    formats     prompt.format                   a `TaggedFormat` or `BoxedFormat`
    tasks       prompt.format                   a format with a verdict of its own, `right`
    adapters    `adapter` of a source           a function from a row to the fields of a problem
    objectives  grpo.loss, grpo.advantage       a function of tensors
    tools       prompt.tool                     a `Tool` (lib.prompts.tools)

A stage depends on the plugins that its params name: a changed reward re-runs the stages that
compute rewards, not SFT.
`check` tries each plugin in params before any stage runs.
"""

import contextlib
import functools
import hashlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lib.core.errors import UserError

# "plugins/rewards/examples.py:brevity"; group 1 is the role.
_NAME = re.compile(
    r"plugins/(rewards|formats|tasks|adapters|objectives|tools)/[a-z0-9_]+\.py:[A-Za-z_]\w*"
)


def is_plugin(name: object, *, role: str = "") -> bool:
    """Return True if `name` has the form `plugins/<role>/<file>.py:name`.

    `role` is one role, several as "formats|tasks", or '' for all.
    """
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    return match is not None and (not role or match[1] in role.split("|"))


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
        UserError: no such file or name, or an error in the file.
    """
    file = _file_of(name)
    with guarded(name):
        # The module is named by the whole path: files of two roles may have the same name.
        spec = importlib.util.spec_from_file_location("_".join(file.with_suffix("").parts), file)
        assert spec and spec.loader
        # Added to sys.modules before it runs: dataclasses look up their own module there.
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    if not hasattr(module, label(name)):
        public = [attribute for attribute in vars(module) if not attribute.startswith("_")]
        raise UserError(f"{name}: {file} has no `{label(name)}`; it has {', '.join(public)}")
    return getattr(module, label(name))


@contextlib.contextmanager
def guarded(name: str, *, inputs: str = "") -> Iterator[None]:
    """Run the block, which calls the plugin `name`; turn an exception into a one-line UserError.

    Args:
        inputs: the arguments of the call as text for the message; '' for none.
    """
    call = f", called with {inputs}" if inputs else ""
    try:
        yield
    # SystemExit: `sys.exit()` in a plugin would end the stage with exit code 0.
    except (Exception, SystemExit) as error:
        fault = _error_with_line(error, Path(name.partition(":")[0]))
        raise UserError(f"{name}: {fault}{call}") from error


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
    # A frame has the absolute path; its last three parts are plugins/<role>/<file>.py.
    frames = traceback.extract_tb(error.__traceback__)
    lines = [each.lineno for each in frames if Path(each.filename).parts[-3:] == file.parts]
    # The last line is the innermost one. A call with wrong arguments has no frame in the file: the
    # message then names line 1.
    line = lines[-1] if lines else 1
    return f"{file}:{line}: {type(error).__name__}: {' '.join(str(error).split())}"
