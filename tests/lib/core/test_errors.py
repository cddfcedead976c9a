"""An error that ends a stage is one line; a bug's traceback goes into a file."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import run_in_forks, run_python

FULL_DISK = [
    "open('/dev/full', 'w').write('x' * 10**6)",
    "raise RuntimeError('I/O error: No space left on device (os error 28)')",
    "import sqlite3; raise sqlite3.OperationalError('database or disk is full')",
    "torch.save(torch.zeros(10**6), '/dev/full')",
    "torch.save(torch.zeros(10**6), open('/dev/full', 'wb'))",
]
OTHERS = {
    "bug": "os.chdir(sys.argv[2])\nraise RuntimeError('a\\nbug')",
    "escapes": "UserError('é \\x1b[2J \\ud800').show()\nraise RuntimeError('\\x1b[3J')",
    "path": "open('/proc/x', 'w')",
}


def test_an_error_that_ends_a_stage_is_one_line(tmp_path):
    """A full disk in five libraries' words, a bug, terminal escapes and an impossible path."""
    setup = "import os, sys, stages, torch; from lib.core.errors import UserError"
    shown = run_in_forks(setup, [*FULL_DISK, *OTHERS.values()], tmp_path)
    bug, escapes, path = shown[-len(OTHERS) :]
    for text in shown[: len(FULL_DISK)]:
        (line,) = [each for each in text.splitlines() if "Exception ignored" not in each]
        assert line.startswith("Error: the disk is full")
    message, _, name = bug.strip().rpartition(" ")
    assert message == "Error: RuntimeError: a bug; the traceback is in"
    assert "line 2, in <module>" in (tmp_path / name).read_text()
    assert "é ⟨U+001B⟩[2J ⟨U+D800⟩" in escapes and "⟨U+001B⟩[3J" in escapes
    assert "\x1b" not in escapes
    assert path.startswith("Error: /proc/x: No such file")


@pytest.mark.slow
def test_the_advice_for_a_full_disk_keeps_commits_and_experiments(tmp_path, monkeypatch):
    full = run_python("import stages; raise OSError(28, 'No space left on device')").stderr
    (advice,) = re.findall(r"`(dvc gc .*?)`", full)
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
