"""Training runs as processes of their own, to be launched on ranks and killed.

`python -m tests.lib.training.runs STAGE FOLDER` trains as the stage does, below FOLDER: the smoke
preset, with the changes of FOLDER/changes.json, from FOLDER/base.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from lib.artifacts import write_jsonl
from lib.artifacts.problems import write_problems
from lib.engines.runtime import configure
from lib.params import Params, preset_params
from lib.problems.generated import GeneratedSets
from lib.prompts import prompt_format
from lib.training.dpo import dpo_setup
from lib.training.grpo import grpo_setup
from lib.training.phase.run import Outputs, run_phase
from lib.training.phase.setup import Setup
from lib.training.phase.validation import Validator
from lib.training.sft import sft_setup
from lib.verifier import counters
from tests.conftest import ROOT
from tests.lib.training.preferences import pairs_of


def changed(params: Params, changes: dict[str, dict[str, Any]]) -> Params:
    content = params.model_dump(mode="json")
    for section, values in changes.items():
        content[section] |= values
    return Params.model_validate_json(json.dumps(content), strict=True)


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
        # Ranks that wait for each other do so for ever; a run takes about 10 s of CPU time.
        timeout=300,
        check=False,
    )


def write_inputs(
    folder: Path, base: Path, sets: GeneratedSets, *, num_sft: int | None = None
) -> Path:
    """Write the phases' inputs into `folder`."""
    shutil.copytree(base, folder / "base")
    write_problems(folder / "sft.jsonl", sets.sft[:num_sft])
    write_problems(folder / "grpo.jsonl", sets.grpo)
    pairs = pairs_of(sets.grpo, base, prompt_format("working_out"))
    write_jsonl(folder / "dpo.jsonl", pairs)
    for name, problems in sets.benchmarks.items():
        write_problems(folder / f"validation/{name}.jsonl", problems[:4])
    return folder


class StopAt(TrainerCallback):
    """Interrupt training after a step, as Ctrl-C does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


def run(
    stage: str,
    folder: Path,
    *,
    callbacks: Sequence[TrainerCallback] = (),
    init: Path | None = None,
) -> None:
    params = changed(preset_params("smoke"), json.loads((folder / "changes.json").read_text()))
    configure(seed=params.seed, threads=params.torch_threads)
    base, problems = folder / "base", folder / f"{stage}.jsonl"
    init = init or base

    def setup(scratch: Path) -> Setup:
        read = {"base": base, "scratch": scratch}
        if stage == "sft":
            return sft_setup(params, problems=problems, **read)
        if stage == "dpo":
            return dpo_setup(params, pairs=problems, init=init, **read)
        return grpo_setup(params, problems=problems, init=init, **read)

    def build(scratch: Path) -> Trainer:
        trainer = setup(scratch).trainer
        for callback in callbacks:
            trainer.add_callback(callback)
        return trainer

    (folder / "models").mkdir(exist_ok=True)
    run_phase(
        build,
        stage=stage,
        section=getattr(params, stage),
        init=init,
        outputs=outputs_in(folder, stage),
        settings=params.model_dump(),
        inputs={"problems": problems, "base": base},
        counts=lambda: {"verifier": counters()},
        validator=Validator(params, folder / "validation", init=init, base=base),
        scratch=folder / "scratch",
    )


if __name__ == "__main__":
    from lib.core.errors import UserError

    try:
        run(sys.argv[1], Path(sys.argv[2]))
    except UserError as error:
        sys.exit(f"Error: {error.message}")
