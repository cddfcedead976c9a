"""DVC whose stages are forks of its own process: at smoke size, importing torch is most of a stage.

    python -m tests.pipeline.warm repro

The first stage imports the libraries, not this project's code. Outputs are those of stages that are
started as dvc.yaml says (test_end_to_end.py compares both). Experiments in folders of their own
(`--temp`, `--queue`) start their stages so.
"""

import gc
import importlib
import os
import runpy
import shlex
import signal
import sys
from typing import Any

from dvc.cli import main
from dvc.stage import run
from dvc.stage.exceptions import StageCmdFailedError

LIBRARIES = (
    *("torch", "torch._inductor.config", "datasets", "trl.trainer.grpo_trainer"),
    *("trl.trainer.sft_trainer", "peft", "transformers.models.qwen3.modeling_qwen3"),
)

LIGHT = ("check", "grade", "report")
"""Stages that import none of these."""

start_process = run._run


def run_stage(executable: str, command: str, *, env: dict[str, str], **kwargs: Any) -> None:
    """Run a stage's command in a fork, and any other as DVC does."""
    _, *options = shlex.split(command)
    room, _, stage = options[1].partition(".") if options[0] == "-m" else ("", "", "")
    if room != "stages" or (stage in LIGHT and "torch" not in sys.modules):
        start_process(executable, command, env=env, **kwargs)
        return
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_NO_TF"):  # read at import
        os.environ.setdefault(name, "1")
    for library in LIBRARIES:
        importlib.import_module(library)
    gc.freeze()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.environ.clear()
        os.environ.update(env)
        os._exit(exit_code_of(options[1:]))
    ours = signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, status = os.waitpid(child, 0)
    signal.signal(signal.SIGINT, ours)
    if code := os.waitstatus_to_exitcode(status):
        raise StageCmdFailedError(command, code)


def exit_code_of(arguments: list[str]) -> int:
    """Run a module as `python -m` would; return its exit code."""
    sys.argv = arguments
    code: object = 0
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # noqa: BLE001 (as the interpreter ends)
        sys.excepthook(*sys.exc_info())
        code = 1
    if not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    run._run = run_stage
    sys.exit(main(sys.argv[1:]))
