"""One's own parts of a run, which params name as `plugins/file.py:name`.

    role        named by                        what it is
    rewards     reward.extra                    a function of a `Rollout`, or one that TRL calls
    formats     prompt.format                   a `TaggedFormat` or `BoxedFormat`
    adapters    `adapter` of a source           a function from a row to the fields of a problem
    objectives  grpo.loss, grpo.advantage       a function of tensors

`check` tries each of them and copies its file to data/plugins/<role>, on which the stages of that
role depend: another reward re-runs what rewards, and no SFT. A stage that DVC runs reads the copy,
since the file itself may be edited while the stages before it run; everything else reads the file.
"""

import ast
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lib.errors import UserError

PATTERN = r"^plugins/[a-z0-9_]+\.py:[A-Za-z_]\w*$"

COPIES = Path("data/plugins")

INDEX = "names.txt"
"""Beside the copies of a role: what params name."""

ROLES = {
    "extra": "rewards",
    "format": "formats",
    "adapter": "adapters",
    "loss": "objectives",
    "advantage": "objectives",
}
"""By the last key in params."""


def is_plugin(name: object) -> bool:
    """Whether `name` is written as a plugin is."""
    return isinstance(name, str) and re.match(PATTERN, name) is not None


def label(name: str) -> str:
    """What curves and messages call a part: without its file, or its stack."""
    return name.rpartition(":")[2]


def plugins_in(settings: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Role and name of every plugin in nested settings; `key` is the one that they stand under."""
    if isinstance(settings, Mapping):
        for inner, value in settings.items():
            yield from plugins_in(value, str(inner))
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from plugins_in(value, key)
    elif key in ROLES and is_plugin(settings):
        yield ROLES[key], settings


def plugin_hashes(settings: Any) -> dict[str, str]:
    """SHA-256 (16 hex digits) of the file of every plugin in nested settings, by its name."""
    return {
        name: hashlib.sha256(plugin_file(name, role).read_bytes()).hexdigest()[:16]
        for role, name in sorted(set(plugins_in(settings)))
    }


def plugin_file(name: str, role: str) -> Path:
    """The file to read: see the module.

    Raises:
        UserError: it is missing.
    """
    original = Path(name.partition(":")[0])
    # DVC tells what it runs which stage it is.
    copied = os.environ.get("DVC_STAGE", "check").rpartition(":")[2] != "check"
    file = COPIES / role / original.name if copied else original
    if not file.is_file():
        remedy = "run `dvc repro`, whose stage `check` copies it" if copied else "write it"
        raise UserError(f"{name}: {file} is missing; {remedy}, or change params.yaml")
    return file


@functools.cache
def load_plugin(name: str, role: str) -> Any:
    """What the plugin's file calls so.

    Raises:
        UserError: no such file or name, an error in the file, or an import of another plugin.
    """
    file = plugin_file(name, role)
    try:
        _refuse_siblings(file)
        spec = importlib.util.spec_from_file_location(f"plugins_{role}_{file.stem}", file)
        assert spec and spec.loader
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{name}: {_where(error, file)}") from error
    if not hasattr(module, label(name)):
        public = [own for own in vars(module) if not own.startswith("_")]
        raise UserError(f"{name}: {file} has no `{label(name)}`; it has {', '.join(public)}")
    return getattr(module, label(name))


def copy_plugins(settings: Any, folders: Mapping[str, Path]) -> None:
    """Copy the file of every plugin in `settings` to the folder of its role, and nothing else."""
    named = sorted(set(plugins_in(settings)))
    for role, folder in folders.items():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        names = [name for of, name in named if of == role]
        # There always, since DVC warns of every empty folder.
        (folder / INDEX).write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        for name in names:
            shutil.copy(name.partition(":")[0], folder)


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
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).name == file.name and "plugins" in Path(frame.filename).parent.parts
    ]
    return f"{file}:{lines[-1] if lines else 1}: {type(error).__name__}: {error}"


def _refuse_siblings(file: Path) -> None:
    """A file that a plugin imports from plugins/ would be tracked by nothing."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        from_ = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules = from_ or [each.name for each in node.names]
        if any(module.partition(".")[0] == "plugins" for module in modules):
            raise UserError(
                f"{file}:{node.lineno}: imports another plugin, whose changes would re-run "
                "nothing; keep a plugin in one file"
            )
