"""What `make` says to a newcomer: help by itself, and one clear line for each mistake."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lib.params import preset_names

ROOT = Path(__file__).parents[1]
PRESETS = ", ".join(preset_names())


def make(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    # Under `make test` the flags of that make would change what this one prints.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *arguments], cwd=cwd, env=plain, capture_output=True, text=True, check=False
    )


def test_make_alone_lists_every_verb_with_what_it_does() -> None:
    shown = make().stdout
    for verb in ("all", "repro", "preset", "compare", "study", "test", "check", "clean"):
        assert f"  make {verb} " in shown


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A checkout without `.venv`."""
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    shutil.copy(ROOT / "Makefile", tmp_path)
    return tmp_path


def test_another_python_is_refused_in_one_line(bare: Path) -> None:
    old = bare / "python3.9"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    shown = make("setup", f"PYTHON={old}", cwd=bare)
    (line,) = [line for line in shown.stderr.splitlines() if not line.startswith("make:")]
    assert line.startswith("Error: reckon needs Python 3.11 or 3.12, found neither as ")
    assert shown.returncode == 2
    assert not (bare / ".venv").exists()


def test_a_missing_python_is_one_line_too(bare: Path) -> None:
    shown = make("setup", "PYTHON=/no/such/python", cwd=bare)
    assert "Error: reckon needs Python 3.11 or 3.12" in shown.stderr
    assert "/no/such/python" in shown.stderr


def fake_python(path: Path, *, version: str, otherwise: str = "exit 1") -> Path:
    """A Python that knows its version, and does `otherwise` when it is asked for anything else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    supported = "0" if version in {"3.11", "3.12"} else "1"
    path.write_text(
        f'#!/bin/sh\ncase "$1" in\n--version) echo Python {version};;\n'
        f"-c) exit {supported};;\n*) {otherwise};;\nesac\n"
    )
    path.chmod(0o755)
    return path


def test_an_environment_of_another_python_is_refused_in_one_line(bare: Path) -> None:
    fake_python(bare / ".venv/bin/python", version="3.13")
    shown = make("setup", cwd=bare)
    (line,) = [line for line in shown.stderr.splitlines() if not line.startswith("make:")]
    assert line == (
        "Error: .venv holds Python 3.13, and reckon needs 3.11 or 3.12; "
        "remove .venv and run `make setup` again"
    )
    assert shown.returncode == 2


def test_a_half_made_environment_does_not_stay(bare: Path) -> None:
    """Without ensurepip, `python -m venv` fails after it has made .venv/bin/python."""
    half = 'mkdir -p .venv/bin && cp "$0" .venv/bin/python && exit 1'
    python = fake_python(bare / "python3.11", version="3.11", otherwise=half)
    shown = make("setup", f"PYTHON={python}", cwd=bare)
    assert "Error: could not create .venv; on Debian and Ubuntu: apt install" in shown.stderr
    assert not (bare / ".venv").exists()


@pytest.mark.parametrize(
    ("preset", "said"),
    [
        ("", f"which preset? `make preset PRESET=...` with {PRESETS}"),
        ("smok", f"no preset `smok`; expected the path of a YAML file or one of {PRESETS}"),
    ],
)
def test_an_unknown_preset_is_one_line_that_lists_them(preset: str, said: str) -> None:
    shown = make("preset", f"PRESET={preset}")
    assert shown.returncode == 2
    (line,) = [line for line in shown.stderr.splitlines() if not line.startswith("make:")]
    assert line == f"Error: {said}"


def test_an_unknown_revision_to_compare_with_is_one_line() -> None:
    shown = make("compare", "BASE=no-such-revision")
    assert shown.returncode == 2
    (line,) = [line for line in shown.stderr.splitlines() if not line.startswith("make:")]
    assert line.startswith("Error: ")
    assert "no-such-revision" in line


def test_clean_touches_neither_data_nor_reports() -> None:
    planned = make("--dry-run", "clean").stdout
    assert "data" not in planned
    assert "reports" not in planned
