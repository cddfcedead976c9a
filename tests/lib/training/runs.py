"""Training runs as processes of their own, to be run on ranks and killed."""

import csv
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer, TrainerCallback

from lib.artifacts import read_json, write_json, write_jsonl
from lib.artifacts.problems import write_problems
from lib.core.errors import UserError
from lib.models.runtime import configure
from lib.params import Params, preset_params
from lib.problems.generated import GeneratedSets
from lib.prompts import prompt_format
from lib.training.dpo import dpo_setup
from lib.training.grpo import grpo_setup
from lib.training.phase.run import Outputs, run_phase
from lib.training.phase.validation import Validator
from lib.training.sft import sft_setup
from tests.conftest import ROOT
from tests.lib.training.preferences import pairs_of
from tests.vllm_server import free_port

CHANGES = "changes.json"

LIMIT_S = 300
"""Seconds: ranks that wait for each other do so for ever; a run takes about 10 s of CPU time."""

# A fresh process takes 9 s of CPU time for its imports; these are forked from one that has them.
# Not where vLLM is installed: TRL imports it, and it is not made to be forked.
PROCESSES = multiprocessing.get_context("spawn" if find_spec("vllm") else "forkserver")
PROCESSES.set_forkserver_preload(["tests.lib.training.ranks"])


def changed(params: Params, changes: dict[str, dict[str, Any]]) -> Params:
    content = params.model_dump(mode="json")
    for section, values in changes.items():
        content[section] |= values
    return Params.model_validate_json(json.dumps(content), strict=True)


def curve(path: Path) -> list[dict[str, str]]:
    """Return the points of a curve's file."""
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))


def outputs_in(folder: Path, stage: str) -> Outputs:
    return Outputs(
        model=folder / "models" / stage,
        metrics=folder / "metrics.json",
        curve=folder / "curve.csv",
        provenance=folder / "provenance.json",
        validation_curve=folder / "validation.csv",
        validation_completions=folder / "validation.jsonl",
        rollouts=folder / "rollouts.jsonl",
    )


def launch(program: str, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run one of the environment's programs in the checkout's root, with one thread a process."""
    # Two tests at once would take the same port, 29500.
    port = ["--standalone"] if program == "torchrun" else []
    return subprocess.run(
        [Path(sys.executable).with_name(program), *port, *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def start(main: Callable[..., None], *arguments, log: Path, **environment: str) -> BaseProcess:
    """Start a function in the checkout's root, in a process of its own that prints into `log`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # the fork server, started here, imports from it
        process = PROCESSES.Process(
            target=_begin, args=(main, arguments, log, {**os.environ, **environment})
        )
        process.start()
    return process


def _begin(
    main: Callable[..., None], arguments: Sequence[Any], log: Path, environment: dict[str, str]
):
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    with log.open("ab") as output:
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
    try:
        main(*arguments)
    except UserError as error:
        sys.exit(f"Error: {error.message}")


def on_ranks(
    number: int, main: Callable[..., None], *arguments, log: Path
) -> "subprocess.CompletedProcess[str]":
    """Run a function on so many ranks, to its end or to the first rank that fails."""
    size, address = str(number), {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    log.unlink(missing_ok=True)
    ranks = []
    for rank in map(str, range(number)):
        world = {"WORLD_SIZE": size, "RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
        own = {**world, **address} if number > 1 else {}
        ranks.append(start(main, *arguments, log=log, **own))
    left = {rank.sentinel: rank for rank in ranks}
    while left:
        ended = [left.pop(sentinel) for sentinel in connection.wait(left, LIMIT_S)]
        if not ended or any(rank.exitcode for rank in ended):
            for rank in left.values():
                rank.kill()
    code = next((rank.exitcode for rank in ranks if rank.exitcode), 0)
    return subprocess.CompletedProcess([], code, log.read_text("utf-8"))


def write_inputs(
    folder: Path,
    base: Path,
    sets: GeneratedSets,
    *,
    num_sft: int | None = None,
    **changes: dict[str, Any],
) -> Path:
    """Write the phases' inputs into `folder`, and changes of the smoke preset, by section."""
    write_json(folder / CHANGES, changes)
    shutil.copytree(base, folder / "base")
    write_problems(folder / "sft.jsonl", sets.sft[:num_sft])
    write_problems(folder / "grpo.jsonl", sets.grpo)
    pairs = pairs_of(sets.grpo, base, prompt_format("working_out"))
    write_jsonl(folder / "dpo.jsonl", pairs)
    for name, problems in sets.benchmarks.items():
        write_problems(folder / f"validation/{name}.jsonl", problems[:4])
    return folder


def read_changes(folder: Path) -> Params:
    """Return the smoke preset's params with the folder's changes."""
    return changed(preset_params("smoke"), read_json(folder / CHANGES))


class StopAt(TrainerCallback):
    """Interrupt training after a step, as Ctrl-C does."""

    def __init__(self, step: int):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KeyboardInterrupt


def train_phase(
    build: Callable[[Path], Trainer],
    folder: Path,
    *,
    stage: str,
    params: Params,
    init: Path,
    **others,
) -> Outputs:
    """Run a phase with all of its files in `folder`, and return its outputs."""
    outputs = outputs_in(folder, stage)
    defaults = {"settings": params.model_dump(), "inputs": {"base": init}}
    run_phase(
        build,
        stage=stage,
        section=getattr(params, stage),
        init=init,
        outputs=outputs,
        **{**defaults, "scratch": folder / "scratch", **others},
    )
    return outputs


def run(stage: str, folder: Path, *, callbacks: Sequence[TrainerCallback] = ()):
    """Train as the stage does, from base and files in `folder`, with its changes."""
    params = read_changes(folder)
    configure(seed=params.seed, threads=params.torch_threads)
    base, problems = folder / "base", folder / f"{stage}.jsonl"

    setup, inputs = {
        "sft": (sft_setup, {"problems": problems}),
        "dpo": (dpo_setup, {"pairs": problems, "init": base}),
        "grpo": (grpo_setup, {"problems": problems, "init": base}),
    }[stage]

    def build(scratch: Path) -> Trainer:
        trainer = setup(params, base=base, scratch=scratch, **inputs).trainer
        for callback in callbacks:
            trainer.add_callback(callback)
        return trainer

    (folder / "models").mkdir(exist_ok=True)
    train_phase(
        build,
        folder,
        stage=stage,
        params=params,
        init=base,
        inputs={"problems": problems, "base": base},
        validator=Validator(params, folder / "validation", init=base, base=base),
    )
