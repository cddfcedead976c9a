"""Project files within a stage's reach, read from the source's imports.

`python -m tests.pipeline.imports` writes them into dvc.yaml.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]

PLUMBING = (
    "lib/core",
    "lib/params",
    "stages/__init__.py",
    "stages/options.py",
)
"""Exempt from dvc.yaml, with files imported by these only: they start and end a stage and word its
errors. DVC tracks the values of params, and plugins, by themselves."""

WHOLE = (
    "lib/artifacts",
    "lib/engines",
    "lib/export",
    "lib/grading",
    "lib/objectives",
    "lib/problems",
    "lib/prompts",
    "lib/report",
    "lib/stats",
    "lib/training/grpo",
    "lib/training/phase",
    "reckon_verifier",
)
"""Packages with one entry in dvc.yaml, the folder, if a stage reaches several of their files."""


STACKS = {
    "reward": "lib/rewards",
    "validation": "lib/rewards/stacks/${validation.stack}.py",
}
"""The entry in dvc.yaml of a stage with rewards, by the first of these sections in its params:
`reward.extra` may name any stack's rewards, validation names one stack."""

REGISTERED = re.compile(r"lib(\.\w+)+:\w+")
"""A registry's name of a lazily imported implementation: its module and the name in it."""


def reachable(start: Path) -> set[Path]:
    """Collect the files an import of `start` can execute, function-level imports included."""
    reached: set[Path] = set()
    waiting = [start]
    while waiting:
        file = waiting.pop()
        if file not in reached and not _is_plumbing(file):
            reached.add(file)
            waiting += [path for name in imported(file) for path in files_of(name)]
    return reached


def imported(file: Path) -> set[str]:
    """List the project's modules imported anywhere in `file`, by dotted name."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and REGISTERED.fullmatch(str(node.value)):
            names.add(node.value.partition(":")[0])
    return {
        name for name in names if name.partition(".")[0] in {"lib", "stages", "reckon_verifier"}
    }


def files_of(name: str) -> list[Path]:
    """List the module's file and the `__init__.py` of each package above it."""
    parts = name.split(".")
    packages = [ROOT.joinpath(*parts[:end], "__init__.py") for end in range(1, len(parts) + 1)]
    module = ROOT.joinpath(*parts).with_suffix(".py")
    return [path for path in (*packages, module) if path.is_file()]


def dependencies(stage: Mapping[str, Any]) -> set[str]:
    """Compute the code entries of a stage's `deps` in dvc.yaml."""
    start = script(stage)
    if start.name == "check.py":
        # Its output does not depend on its imports.
        return {"stages/check.py"}
    # The report reads presets as data, to list the params that differ.
    read = {"lib/presets"} if start.name == "report.py" else set[str]()
    reached = reachable(start)
    if ROOT / "lib/rewards/functions.py" in reached:
        # Mining pairs judges without rewards: neither section is among its params.
        read |= {*[stacks for section, stacks in STACKS.items() if section in stage["params"]][:1]}
    rooms: dict[str, list[str]] = defaultdict(list)
    for file in reached:
        if file.name == "__init__.py" and not _holds_code(file):
            continue
        relative = file.relative_to(ROOT).as_posix()
        if any(relative.startswith(f"{folder}/") for folder in read):
            continue
        room = next((room for room in WHOLE if relative.startswith(f"{room}/")), relative)
        rooms[room].append(relative)
    return read | {room if len(files) > 1 else files[0] for room, files in rooms.items()}


def _is_plumbing(file: Path) -> bool:
    return any(file.is_relative_to(ROOT / entry) for entry in PLUMBING)


def _holds_code(file: Path) -> bool:
    """Return True if a package's `__init__.py` has more than a docstring."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return any(not isinstance(node, ast.Expr) for node in body)


def script(stage: Mapping[str, Any]) -> Path:
    """Return the script of a stage of dvc.yaml; two stages may share one."""
    module = re.search(r"-m stages\.(\w+)", stage["cmd"])
    assert module
    return ROOT / f"stages/{module[1]}.py"


def write_dependencies() -> None:
    """Replace the code deps of every stage in dvc.yaml; deps on data and plugins stay."""
    yaml = YAML()
    yaml.indent(mapping=2, sequence=2, offset=0)
    yaml.width = 1000
    file = ROOT / "dvc.yaml"
    pipeline = yaml.load(file)
    for stage in pipeline["stages"].values():
        exchanged = [dep for dep in stage["deps"] if dep.startswith(("${", "data/", "plugins"))]
        stage["deps"][:] = [*sorted(dependencies(stage)), *exchanged]
    with file.open("w", encoding="utf-8") as written:
        yaml.dump(pipeline, written)


if __name__ == "__main__":
    write_dependencies()
