"""The contract on imports fails on an upward import; `make check` applies it to the library."""

import shutil
import sys
from pathlib import Path

import pytest

from lib.artifacts import ROOT
from tests.conftest import run_command


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("lib/prompts/saved.py", "from lib.studies.results import verdicts"),
        ("lib/stats/estimates.py", "import lib.report.page"),
        ("lib/artifacts/problems.py", "import lib.params.data"),
        ("lib/models/hub.py", "import lib.engines.base"),
        ("lib/params/data.py", "import lib.problems.adapters"),
        ("reckon_verifier/words.py", "import lib.stats"),
        ("lib/core/errors.py", "import stages.options"),
        ("stages/options.py", "import commands.preset"),
        ("lib/attic/__init__.py", ""),
    ],
    ids=lambda value: value,
)
def test_an_upward_import_breaks_the_contract(tmp_path, file, line):
    for name in ("lib", "stages", "commands", "reckon_verifier", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    changed = tmp_path / file
    changed.parent.mkdir(exist_ok=True)
    with changed.open("a", encoding="utf-8") as text:
        text.write(f"{line}\n")
    linter = Path(sys.executable).with_name("lint-imports")
    done = run_command(linter, "--no-cache", cwd=tmp_path)
    assert done.returncode == 1
    assert (line.split()[1] if line else "attic") in done.stdout
