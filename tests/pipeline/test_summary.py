"""The last lines of `make all` say why tracked files changed."""

import subprocess
from pathlib import Path

import pytest

from stages.summary import git_lines

LOCK = """\
stages:
  sft:
    deps:
    - {path: data/problems/sft.jsonl, md5: a}
    - {path: lib/training, md5: code}
    params: {params.yaml: {sft: {num_epochs: 2}}}
    outs:
    - {path: data/models/sft, md5: weights}
  report:
    deps:
    - {path: data/models, md5: b.dir}
"""


@pytest.mark.parametrize(
    ("changes", "why", "restores"),
    [
        ({"weights": "others", "b.dir": "c.dir"}, "another CPU", True),
        ({"num_epochs: 2": "num_epochs: 3"}, "in sft.num_epochs)", False),
        ({"md5: code": "md5: newer"}, "in lib/training)", False),
    ],
)
def test_only_another_rounding_is_to_be_thrown_away(changes, why, restores, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert list(git_lines()) == []  # no repository
    Path("dvc.lock").write_text(LOCK)
    for command in ("init -q", "add dvc.lock", "-c user.name=t -c user.email=t@t commit -qm one"):
        subprocess.run(["git", *command.split()], check=True)
    assert list(git_lines()) == []
    lock = LOCK
    for old, new in changes.items():
        lock = lock.replace(old, new)
    Path("dvc.lock").write_text(lock)
    (line,) = git_lines()
    assert why in line and ("git checkout" in line) == restores and "git commit -am" in line
