"""`dvc repro` is ended in the middle of training: nothing runs on, the next one resumes, and a
second one beside it is refused."""

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

from tests.pipeline.test_end_to_end import Clone, clone_with_smoke

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone in which `prepare` has run, and whose sft takes a while."""
    made = clone_with_smoke(tmp_path_factory.mktemp("interruption") / "reckon")
    with modify_yaml(made.folder / "params.yaml") as params:
        params["sft"] |= {"num_epochs": 12, "logging_steps": 5, "save_steps": 10}
    made.dvc("repro", "prepare")
    yield made


def training_in(folder: Path) -> list[psutil.Process]:
    """Processes that work in the clone."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until_idle(folder: Path) -> None:
    """Wait for the last process; one that never ends is for the whole run's time limit to end."""
    while training_in(folder):
        time.sleep(0.1)


def start(clone: Clone) -> "subprocess.Popen[str]":
    """`dvc repro sft` as the leader of a process group, as a terminal starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro", "sft"],
        cwd=clone.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # Where the tests run in the background of a shell, Ctrl-C is ignored, and so by children.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def read_until(running: "subprocess.Popen[str]", wanted: str) -> str:
    """Output up to the line that holds `wanted`."""
    said = ""
    for line in running.stdout:
        said += line
        if wanted in line:
            return said
    raise AssertionError(said)


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
        # The output is read to its end once nobody can write to it any more.
        said = running.stdout.read()
    assert "resumes from step " in said
    assert "Traceback" not in said
    wait_until_idle(clone.folder)
    assert not (clone.folder / "data/models/sft").exists()
    assert not list(clone.folder.rglob("*.partial"))

    with start(clone) as running:
        assert "sft resumes from step " in read_until(running, "sft step=")
        # It keeps its lock and cannot come to its end before a second run has started.
        os.killpg(running.pid, signal.SIGSTOP)
        said = clone.run(sys.executable, "-m", "stages.sft", expected=1)
        assert any(f"process {process.pid}" in said for process in training_in(clone.folder))
        os.killpg(running.pid, signal.SIGKILL)
    wait_until_idle(clone.folder)
