"""One's own parts of a run, which params name as `plugins/<role>/<file>.py:name`.

    role        named by                        what it is
    rewards     reward.extra                    a function of a `Rollout`, or one that TRL calls
    formats     prompt.format                   a `TaggedFormat` or `BoxedFormat`
    adapters    `adapter` of a source           a function from a row to the fields of a problem
    objectives  grpo.loss, grpo.advantage       a function of tensors

The stages of a role depend on its folder: another reward re-runs what rewards, and no SFT. `check`
tries each part that params name before any of them.
"""

import ast
import functools
import hashlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lib.core.errors import UserError

_NAME = re.compile(r"plugins/(rewards|formats|adapters|objectives)/[a-z0-9_]+\.py:[A-Za-z_]\w*")


def is_plugin(name: object, *, role: str = "") -> bool:
    """Whether `name` is written as a plugin is, of any role or of this one."""
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    return match is not None and role in ("", match[1])


def label(name: str) -> str:
    """What curves and messages call a part: without its file, or its stack."""
    return name.rpartition(":")[2]


def plugin_hashes(settings: Any) -> dict[str, str]:
    """SHA-256 (16 hex digits) of the file of each plugin in nested settings, by its name."""
    if isinstance(settings, Mapping):
        settings = tuple(settings.values())
    if isinstance(settings, list | tuple):
        return {name: digest for each in settings for name, digest in plugin_hashes(each).items()}
    if not is_plugin(settings):
        return {}
    return {settings: hashlib.sha256(_file_of(settings).read_bytes()).hexdigest()[:16]}


def _file_of(name: str) -> Path:
    file = Path(name.partition(":")[0])
    if not file.is_file():
        raise UserError(f"{name}: {file} is missing; write it, or change params.yaml")
    return file


@functools.cache
def load_plugin(name: str) -> Any:
    """What the plugin's file calls so.

    Raises:
        UserError: no such file or name, an error in the file, or an import of another plugin.
    """
    file = _file_of(name)
    try:
        _refuse_siblings(file)
        spec = importlib.util.spec_from_file_location("_".join(file.with_suffix("").parts), file)
        assert spec and spec.loader
        # Dataclasses look their own module up there.
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{name}: {_where(error, file)}") from error
    if not hasattr(module, label(name)):
        public = [own for own in vars(module) if not own.startswith("_")]
        raise UserError(f"{name}: {file} has no `{label(name)}`; it has {', '.join(public)}")
    return getattr(module, label(name))


def in_words(name: str, error: Exception, *, inputs: str) -> UserError:
    """An error that a plugin's function raised, with what it was called with."""
    where = _where(error, Path(name.partition(":")[0]))
    return UserError(f"{name}: {where}, called with {inputs}")


def _where(error: Exception, file: Path) -> str:
    """The error and the last line of the plugin's file that it went through."""
    if isinstance(error, UserError):
        return error.message
    if isinstance(error, SyntaxError):
        return f"{file}:{error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).parts[-3:] == file.parts]
    return f"{file}:{lines[-1] if lines else 1}: {type(error).__name__}: {error}"


def _refuse_siblings(file: Path) -> None:
    """What a plugin imports from plugins/ would be in no provenance."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Import):
            modules = [each.name for each in node.names]
        else:
            # `from . import x` names the plugin's own folder.
            modules = ["plugins" if node.level else str(node.module)]
        if any(module.partition(".")[0] == "plugins" for module in modules):
            raise UserError(
                f"{file}:{node.lineno}: imports another plugin, whose changes would be in no "
                "provenance; keep a plugin in one file"
            )
