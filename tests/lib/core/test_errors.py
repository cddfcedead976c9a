"""An error that ends a stage is one line; a bug's traceback goes into a file."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import run_python


def fails_with(code: str, *arguments: str) -> str:
    ran = run_python(f"import stages\n{code}", *arguments)
    assert ran.returncode == 1
    return ran.stderr


@pytest.mark.parametrize(
    "code",
    [
        "open('/dev/full', 'w').write('x' * 10**6)",
        "raise RuntimeError('I/O error: No space left on device (os error 28)')",
        "import sqlite3; raise sqlite3.OperationalError('database or disk is full')",
        "import torch; torch.save(torch.zeros(10**6), '/dev/full')",
        "import torch; torch.save(torch.zeros(10**6), open('/dev/full', 'wb'))",
    ],
)
def test_a_full_disk_is_one_line(code):
    lines = [line for line in fails_with(code).splitlines() if "Exception ignored" not in line]
    assert lines[0].startswith("Error: the disk is full")
    assert "Traceback" not in lines[0]


def test_a_bug_is_one_line_and_a_file(tmp_path):
    code = "import os; os.chdir(sys.argv[1])\nraise RuntimeError('a\\nbug')"
    (line,) = fails_with(f"import sys; {code}", str(tmp_path)).splitlines()
    message, _, name = line.rpartition(" ")
    assert message == "Error: RuntimeError: a bug; the traceback is in"
    assert "line 3, in <module>" in (tmp_path / name).read_text()


def test_no_error_reaches_a_terminal_with_its_escapes():
    show = "from lib.core.errors import UserError\nUserError('é \\x1b[2J \\ud800').show()\n"
    stderr = fails_with(f"{show}raise RuntimeError('\\x1b[3J')")
    assert "é ⟨U+001B⟩[2J ⟨U+D800⟩" in stderr and "⟨U+001B⟩[3J" in stderr and "\x1b" not in stderr


def test_a_path_that_cannot_be_written_is_named():
    assert "Error: /proc/x: No such file" in fails_with("open('/proc/x', 'w')")


def test_the_advice_for_a_full_disk_keeps_commits_and_experiments(tmp_path, monkeypatch):
    (advice,) = re.findall(
        r"`(dvc gc .*?)`", fails_with("raise OSError(28, 'No space left on device')")
    )
    monkeypatch.chdir(tmp_path)

    def run(*command):
        subprocess.run(command, check=True, capture_output=True)

    def add(content):
        Path("model").write_text(content)
        run("dvc", "add", "model")

    run("git", "init")
    run("dvc", "init")
    add("committed")
    run("git", "add", ".")
    run("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "first")
    for content in ("experiment", "unused", "workspace"):
        add(content)
        if content == "experiment":
            run("dvc", "exp", "save", "--name", "other")
    run(*advice.split(), "--force")
    cached = [path.read_text() for path in Path(".dvc/cache/files").rglob("*") if path.is_file()]
    assert sorted(cached) == ["committed", "experiment", "workspace"]
