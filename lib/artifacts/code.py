"""The code that decides a stage's result: its import closure, a hash for each file.

A Python file is hashed by its syntax tree without docstrings, so that comments and layout do not
count; any other file by its bytes. `check` writes a manifest per stage, on which the stage depends
in dvc.yaml. Resuming and provenance compute the same hashes when a stage starts.
"""

import ast
import functools
import importlib.util
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lib.artifacts import ROOT, hash_json, hash_path
from lib.core.errors import UserError
from lib.core.plugins import is_plugin, plugin_hashes

EXEMPT = (
    "lib/core",
    "lib/params/load.py",
    "lib/params/presets.py",
    "lib/params/rules.py",
    "lib/presets",
    "stages/__init__.py",
    "stages/options.py",
)
"""Not hashed, nor followed: what starts and ends a process, words its errors, and reads the command
line and params. DVC compares the values of params; presets only become such values."""

CHECKED = "lib.params"
"""Its imports of other rooms serve the checks of params only, and are not followed."""

DATA = {"nearest_preset": "lib/presets/*.yaml"}
"""Imported function → data files that it reads in another room."""

REWARDS = "lib/rewards/functions.py"
"""Imports the reward stacks that params name."""

MODULE = re.compile(r"((?:lib|stages|reckon_verifier)(?:\.\w+)+)(?::\w+)?")
"""A module in a text, as in registries and in commands for a fresh process: `lib.x.y`, or with a
name in it, `lib.x.y:Name`."""


def stage_code(stage: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return {path: hash} of the files that decide a stage's result.

    Args:
        stage: its name, and that of its script.
        settings: the stage's params by section; the plugins and reward stacks named there count.
    """
    plugins = [name.partition(":")[0] for name in plugin_hashes(settings)]
    return _hashes([f"stages/{stage}.py", *plugins], stacks=set(_stacks(settings)))


def verifier_code() -> str:
    """Hash the verifier's code, for provenance (16 hex digits)."""
    return hash_json(_hashes(["reckon_verifier/__init__.py"]))


def _hashes(start: Iterable[str], *, stacks: Iterable[str] = ()) -> dict[str, str]:
    """Return {path: hash} of files, of all that their imports can run, and of data beside it.

    Args:
        start: paths below the checkout.
        stacks: modules that `REWARDS` imports.
    """
    hashes: dict[str, str] = {}
    modules, data, folders = set[str](), set[Path](), set[Path]()
    waiting = list(start)
    while waiting:
        path = waiting.pop()
        if path in hashes or _is_exempt(path):
            continue
        is_ours = not path.startswith("plugins/")
        # Plugins are found below the working directory.
        file = ROOT / path if is_ours else Path(path)
        try:
            hashes[path], named = _parse(file.read_bytes())
        except SyntaxError as error:
            raise UserError(f"{path}:{error.lineno}: {error.msg}; mend the file") from error
        package = ".".join(Path(path).parts[:-1])
        names = {importlib.util.resolve_name(name, package) for name in named}
        if package == CHECKED:
            names = {name for name in names if name.startswith(f"{CHECKED}.")}
        names.update(stacks if path == REWARDS else ())
        for name in names - modules:
            waiting += _files_of(name)
            pattern = DATA.get(name.rpartition(".")[2])
            data.update(ROOT.glob(pattern) if pattern else ())
        modules |= names
        if is_ours:
            folders.add(file.parent)
    data.update(file for folder in folders for file in _data_in(folder))
    return dict(sorted((hashes | {_relative(file): hash_path(file) for file in data}).items()))


@functools.cache
def _parse(source: bytes) -> tuple[str, frozenset[str]]:
    """Return a Python file's hash, and the modules of the project that it names.

    Relative names begin with dots. `from a import b` gives `a` and `a.b`, since b may be a module.
    """
    names: set[str] = set()

    def plain(node: Any) -> Any:
        """Return a node as nested tuples, without docstrings and other texts as statements.

        Adds the modules that it imports, or names in a text, to `names`.
        Empty fields are left out: another version of Python has others.
        """
        if isinstance(node, list):
            return [
                plain(each)
                for each in node
                if not (isinstance(each, ast.Expr) and _text(each.value) is not None)
            ]
        if not isinstance(node, ast.AST):
            return node
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            dot = "." if node.module else ""
            names.update(module + dot + alias.name for alias in node.names)
            names.update({module} if node.module else ())
        elif (text := _text(node)) and (match := MODULE.fullmatch(text)):
            names.add(match[1])
        fields = ((field, getattr(node, field, None)) for field in node._fields)
        return type(node).__name__, *(
            (field, plain(value))
            for field, value in fields
            if value is not None and value != [] and field not in ("ctx", "kind")
        )

    tree = repr(plain(ast.parse(source)))
    return hash_json(tree), frozenset(
        name for name in names if name.startswith(("lib", "stages", "reckon_verifier", "."))
    )


def _text(node: ast.AST) -> str | None:
    """Return the text of a node that is a string constant, else None."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _files_of(name: str) -> Iterator[str]:
    """Yield a module's file, and the `__init__.py` of each package above it."""
    *packages, last = itertools.accumulate(name.split("."), "{}/{}".format)
    for path in (*(f"{each}/__init__.py" for each in (*packages, last)), f"{last}.py"):
        if (ROOT / path).is_file():
            yield path


def _stacks(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the modules of the reward stacks in params; all for a reward named without a stack."""
    for section in settings.values():
        if not isinstance(section, Mapping) or "stack" not in section:
            continue
        rewards = [name for name in section.get("extra", ()) if not is_plugin(name)]
        for stack in (section["stack"], *(name.rpartition(":")[0] for name in rewards)):
            for file in (ROOT / "lib/rewards/stacks").glob(f"{stack or '*'}.py"):
                yield f"lib.rewards.stacks.{file.stem}"


def _data_in(folder: Path) -> Iterator[Path]:
    """Yield the files beside a folder's modules, and those of folders below without modules."""
    for path in folder.iterdir():
        if path.name.startswith((".", "__pycache__")) or _is_exempt(_relative(path)):
            continue
        if path.is_file() and path.suffix != ".py":
            yield path
        elif path.is_dir() and not any(path.rglob("*.py")):
            yield from _data_in(path)


def _relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def _is_exempt(path: str) -> bool:
    return f"{path}/".startswith(tuple(f"{each}/" for each in EXEMPT))
