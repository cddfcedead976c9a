"""The last lines of `make all` tell of changed tracked files."""

import subprocess
from pathlib import Path

from commands.summary import git_lines


def test_changed_tracked_files_are_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert list(git_lines()) == []  # no repository
    lock = Path("dvc.lock")
    lock.write_text("stages: {}\n")
    for command in ("init -q", "add dvc.lock", "-c user.name=t -c user.email=t@t commit -qm one"):
        subprocess.run(["git", *command.split()], check=True)
    assert list(git_lines()) == []
    lock.write_text("stages: {sft: {}}\n")
    (line,) = git_lines()
    assert (
        "1 modified tracked file;" in line and "git checkout" in line and "git commit -am" in line
    )
