"""Phases that run one after the other in one process leave nothing behind."""

import gc
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lib.artifacts import write_metrics
from lib.artifacts.completions import read_graded
from lib.artifacts.problems import write_problems
from lib.engines.runtime import configure
from lib.evaluation.completions import complete_checkpoint
from lib.export.model import publish
from lib.grading.files import grade_file
from lib.grading.metrics import summarise
from lib.params import Params
from lib.problems.generated import GeneratedSets
from lib.prompts import format_settings
from lib.prompts.saved import save_prompt
from lib.training.grpo import grpo_setup
from lib.training.phase.run import run_phase
from lib.training.phase.setup import prompt_settings
from lib.training.phase.validation import read_validator
from lib.training.sft import sft_setup
from lib.verifier.symbolic import warm_up
from tests.lib.training.runs import changed, outputs_in
from tests.live import held

ALLOWED_BYTES = 1024
"""Constants that libraries keep; the smoke model's smallest matrix has 4096."""


@pytest.fixture
def uncollected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Python's own garbage collection off, which may come late or never on a full GPU; the one
    process that is meant to stay, the verifier's, started."""
    monkeypatch.chdir(tmp_path)
    warm_up()
    gc.collect()
    gc.disable()
    try:
        yield tmp_path
    finally:
        gc.enable()


def few_steps(smoke: Params, rank: int) -> Params:
    """With a reference policy in GRPO: a second adapter, or a second model."""
    lora = {**smoke.model.lora.model_dump(mode="json"), "rank": rank}
    sft = {"num_epochs": 1, "eval_steps": 2, "save_steps": 2}
    return changed(smoke, {"model": {"lora": lora}, "sft": sft, "grpo": {"beta": 0.1}})


def write_inputs(folder: Path, base: Path, sets: GeneratedSets, params: Params) -> None:
    shutil.copytree(base, folder / "base")
    save_prompt(folder / "base", system="", rendering=format_settings(params.prompt))
    write_problems(folder / "sft.jsonl", sets.sft[:48])
    write_problems(folder / "grpo.jsonl", sets.grpo)
    for name, problems in sets.benchmarks.items():
        write_problems(folder / f"benchmarks/{name}.jsonl", problems[:4])


def phases(folder: Path, params: Params) -> dict[str, Callable[[], object]]:
    """By name, what the stages run, each on what the one before wrote."""
    base, problems = folder / "base", folder / "benchmarks"
    asked = prompt_settings(params, base)
    models = {"sft": base, "grpo": folder / "models/sft"}

    def build(stage: str, scratch: Path) -> Any:
        read = {"problems": folder / f"{stage}.jsonl", "base": base, "scratch": scratch}
        if stage == "sft":
            return sft_setup(params, **read).trainer
        return grpo_setup(params, init=models[stage], **read).trainer

    def train(stage: str) -> None:
        run_phase(
            lambda scratch: build(stage, scratch),
            stage=stage,
            section=getattr(params, stage),
            init=models[stage],
            outputs=outputs_in(folder, stage),
            settings=params.model_dump(),
            inputs={"base": base},
            validator=read_validator(params, problems, init=models[stage], base=base, **asked),
            scratch=folder / "scratch",
        )

    def evaluate() -> None:
        complete_checkpoint(
            folder / "models/grpo",
            base=base,
            problems=problems,
            completions=folder / "completions.jsonl",
            model=params.model,
            prompt=params.prompt,
            evaluate=params.evaluate,
            seed=params.seed,
        )
        grade_file(
            folder / "completions.jsonl",
            folder / "graded.jsonl",
            reward=params.reward,
            max_new_tokens=params.evaluate.max_new_tokens,
        )
        write_metrics(folder / "measured.json", summarise(read_graded(folder / "graded.jsonl")))

    def export() -> None:
        publish(
            folder / "models/grpo",
            folder / "export",
            params=params,
            base=base,
            problems=problems,
            measured=folder / "measured.json",
        )

    return {
        "sft": lambda: train("sft"),
        "grpo": lambda: train("grpo"),
        "evaluate": evaluate,
        "export": export,
    }


@pytest.mark.parametrize("rank", [0, 8], ids=["full", "LoRA"])
def test_each_phase_gives_its_tensors_and_processes_back(
    rank: int, base: Path, sets: GeneratedSets, smoke: Params, uncollected: Path
) -> None:
    params = few_steps(smoke, rank)
    configure(seed=params.seed, threads=params.torch_threads)
    write_inputs(uncollected, base, sets, params)
    before = held()
    for name, run in phases(uncollected, params).items():
        run()
        now = held()
        assert now.num_bytes <= before.num_bytes + ALLOWED_BYTES, name
        assert now.processes == before.processes, name


def test_what_a_reference_cycle_holds_is_counted(uncollected: Path) -> None:
    before = held().num_bytes
    cycle: list[object] = [torch.zeros(1000)]
    cycle.append(cycle)
    assert held().num_bytes == before + 4000
    del cycle
    assert held().num_bytes == before + 4000
    gc.collect()
    assert held().num_bytes == before
