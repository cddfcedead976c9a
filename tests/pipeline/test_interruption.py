"""`dvc repro` can be ended in training: no process stays, and the next one resumes.

A second run of the same stage at the same time is refused.
"""

import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from dvc.utils.serialize import modify_yaml

from lib.artifacts import hash_path, write_jsonl
from stages.prepare import RESTORE
from tests.pipeline.test_end_to_end import Clone, copy_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clone(smoke_run, tmp_path_factory):
    """Copy the smoke pipeline's run, with a longer SFT to come."""
    made = copy_of(smoke_run, tmp_path_factory.mktemp("interruption") / "reckon")
    made.change(sft={"num_epochs": 12, "logging_steps": 5, "save_steps": 10})
    yield made


def training_in(folder: Path) -> list[psutil.Process]:
    """List the live processes with `folder` as working directory."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except psutil.Error:
            continue
    return processes


def wait_until_idle(folder: Path) -> None:
    """Wait for the last process; a hanging one meets pytest's time limit."""
    while training_in(folder):
        time.sleep(0.1)


def start(clone: Clone) -> "subprocess.Popen[str]":
    """Start `dvc repro sft` as the leader of a process group, as a terminal would."""
    return subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro", "sft"],
        cwd=clone.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A shell's background jobs ignore Ctrl-C, and so would their children.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def read_until(running: "subprocess.Popen[str]", wanted: str) -> str:
    """Read the output up to the line with `wanted`."""
    output = ""
    for line in running.stdout:
        output += line
        if wanted in line:
            return output
    raise AssertionError(output)


@pytest.mark.parametrize("how", ["sigterm", "ctrl-c"])
def test_nothing_outlives_dvc_and_the_next_repro_resumes(clone, how):
    shutil.rmtree(clone.folder / "data/scratch", ignore_errors=True)
    with start(clone) as running:
        read_until(running, "sft step=15/")
        assert any("stages.sft" in process.cmdline() for process in training_in(clone.folder))
        if how == "sigterm":
            running.send_signal(signal.SIGTERM)
        else:
            os.killpg(running.pid, signal.SIGINT)
        # This returns once no process has the pipe open any more.
        output = running.stdout.read()
    assert "resumes from step " in output
    assert "Traceback" not in output
    wait_until_idle(clone.folder)
    assert not (clone.folder / "data/models/sft").exists()
    assert not list(clone.folder.rglob("*.partial"))

    with start(clone) as running:
        assert "sft resumes from step " in read_until(running, "sft step=")
        # Stopped, it keeps its lock and cannot end before the second run starts.
        os.killpg(running.pid, signal.SIGSTOP)
        output = clone.python("stages.sft", expected=1)
        assert any(f"process {process.pid}" in output for process in training_in(clone.folder))
        os.killpg(running.pid, signal.SIGKILL)
    wait_until_idle(clone.folder)


def test_a_failed_prepare_is_undone_by_the_command_that_it_prints(smoke_run, tmp_path):
    made = copy_of(smoke_run, tmp_path / "reckon")
    names = ["data/problems", "data/models/base", "reports/metrics/prepare.json"]
    outputs = [made.folder / name for name in names]
    before = list(map(hash_path, outputs))
    # `check` reads the ends of a source only.
    rows = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(20)]
    rows[10]["answer"] = "proof"
    write_jsonl(made.folder / "data/raw/mine.jsonl", rows)
    source = {"path": "data/raw/mine.jsonl", "adapter": "table", "columns": {}, "limit": "all"}
    with modify_yaml(made.folder / "params.yaml") as params:
        params["prepare"]["grpo"]["sources"] = [{"weight": "all", "source": source}]
    printed = made.dvc("repro", "prepare", expected=255)
    assert "data/raw/mine.jsonl:11: field `reference`" in printed
    assert RESTORE in printed
    assert not outputs[0].exists()
    restore_git, restore_dvc = RESTORE.split(" && ")
    made.run(*restore_git.split())
    made.dvc(*restore_dvc.split()[1:])
    assert list(map(hash_path, outputs)) == before
