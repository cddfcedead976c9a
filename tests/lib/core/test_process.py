"""A run ends in good order, and never outlives its `dvc`."""

import os
import signal
import subprocess
import sys

from lib.core import process
from lib.core.process import DVC_STAGE

STAGE = """
import os, sys, time
from lib.core.process import end_with_dvc
end_with_dvc()
print(os.getpid(), flush=True)
while True:
    time.sleep(3600)
"""

STARTER = """
import os, subprocess, sys
environment = {**os.environ, "DVC_STAGE": "sft"}
# DVC puts a shell between the two where the command is more than one word
shell = subprocess.Popen(["/bin/sh", "-c", '"$0" -c "$1"; true', sys.executable, sys.argv[1]],
                         env=environment)
shell.wait()
"""


def python(code: str, *arguments: str, **kwargs: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **kwargs,  # type: ignore[call-overload]
    )


WRITE = """
import os, sys, time
from pathlib import Path
import stages
from lib.artifacts import replacing
with replacing(Path(sys.argv[1])) as partial:
    partial.write_text("half")
    child = os.fork()
    if child:
        time.sleep(0.3)  # until the child has left the fork
        print(child, flush=True)
    time.sleep(3600)
"""


def test_a_stage_and_its_fork_end_by_sigterm_and_leave_no_file(tmp_path, in_root):
    with python(WRITE, str(tmp_path / "graded.jsonl"), stderr=subprocess.PIPE) as stage:
        child = int(stage.stdout.readline())
        assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]
        os.kill(child, signal.SIGTERM)
        stage.send_signal(signal.SIGTERM)
        # The child holds the pipe too, so that this ends with the second of the two.
        assert stage.stderr.read() == "Error: interrupted\n"
    assert list(tmp_path.iterdir()) == []


def test_a_stage_ends_when_the_dvc_that_started_it_is_killed(in_root):
    environment = {name: value for name, value in os.environ.items() if name != DVC_STAGE}
    with python(STARTER, STAGE, env=environment) as dvc:
        assert int(dvc.stdout.readline()) != dvc.pid
        dvc.kill()
        # The stage holds the pipe's other end: it is read to its end once the stage is gone.
        assert dvc.stdout.read() == ""


def test_a_stage_that_was_started_by_hand_outlives_its_shell(monkeypatch):
    from lib.core import process

    monkeypatch.delenv(DVC_STAGE, raising=False)
    assert process._dvc_ancestor() is None
    monkeypatch.setenv(DVC_STAGE, "sft")
    starter = process._dvc_ancestor()
    assert starter.pid == os.getppid()


def test_a_checkout_that_cannot_be_written_prints_the_traceback(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(process, "TRACEBACKS", tmp_path / "file/none")
    (tmp_path / "file").touch()
    process._report(ValueError, ValueError("fault"), None)
    assert "fault" in capsys.readouterr().err
