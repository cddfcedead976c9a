"""Phases that run one after the other in one process leave nothing behind."""

import gc
import shutil
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
import torch

from lib.artifacts import write_metrics
from lib.artifacts.completions import read_graded
from lib.artifacts.problems import write_problems
from lib.evaluation.completions import complete_checkpoint
from lib.export.model import publish
from lib.grading.grade import grade_file
from lib.grading.metrics import summarise
from lib.params import Params
from lib.problems.generated import GeneratedSets
from lib.prompts.saved import save_prompt
from lib.verifier.symbolic import warm_up
from tests.lib.training.runs import changed, run
from tests.live import held

ALLOWED_BYTES = 1024
"""Constants that libraries keep; the smoke model's smallest matrix has 4096."""


@pytest.fixture
def uncollected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Python's own garbage collection off, which may come late or never on a full GPU; the
    processes that are meant to stay started: the verifier's, and what watches `multiprocessing`."""
    monkeypatch.chdir(tmp_path)
    warm_up()
    resource_tracker.ensure_running()
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
    (folder / "changes.json").write_text(params.model_dump_json())
    shutil.copytree(base, folder / "base")
    save_prompt(folder / "base", system="", rendering=params.prompt.rendering)
    write_problems(folder / "sft.jsonl", sets.sft[:48])
    write_problems(folder / "grpo.jsonl", sets.grpo)
    for name, problems in sets.benchmarks.items():
        write_problems(folder / f"validation/{name}.jsonl", problems[:4])


def evaluate(folder: Path, params: Params) -> None:
    complete_checkpoint(
        folder / "models/grpo",
        base=folder / "base",
        problems=folder / "validation",
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


def export(folder: Path, params: Params) -> None:
    publish(
        folder / "models/grpo",
        folder / "export",
        params=params,
        base=folder / "base",
        problems=folder / "validation",
        measured=folder / "measured.json",
    )


@pytest.mark.parametrize("rank", [0, 8], ids=["full", "LoRA"])
def test_each_phase_gives_its_tensors_and_processes_back(
    rank: int, base: Path, sets: GeneratedSets, smoke: Params, uncollected: Path
) -> None:
    params, folder = few_steps(smoke, rank), uncollected
    write_inputs(folder, base, sets, params)
    before = held()
    for phase in (
        lambda: run("sft", folder),
        lambda: run("grpo", folder, init=folder / "models/sft"),
        lambda: evaluate(folder, params),
        lambda: export(folder, params),
    ):
        phase()
        now = held()
        assert now.num_bytes <= before.num_bytes + ALLOWED_BYTES
        assert now.processes == before.processes


def test_what_a_reference_cycle_holds_is_counted(uncollected: Path) -> None:
    before = held().num_bytes
    cycle: list[object] = [torch.zeros(1000)]
    cycle.append(cycle)
    assert held().num_bytes == before + 4000
    del cycle
    assert held().num_bytes == before + 4000
    gc.collect()
    assert held().num_bytes == before
