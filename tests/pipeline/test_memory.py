"""Phases in one process leave no tensors and no child processes behind."""

import gc
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from lib.artifacts import write_json
from lib.params import preset_params
from tests.live import held
from tests.pipeline.stages import evaluate, export, grade, run

ALLOWED_BYTES = 1024
"""Constants of libraries stay; the smoke model's smallest matrix has 4096 bytes."""


@pytest.fixture
def uncollected(monkeypatch, tmp_path):
    """Switch garbage collection off: on a full GPU it may come too late.

    `multiprocessing`'s resource tracker is meant to stay, so it starts before the first count.
    """
    monkeypatch.chdir(tmp_path)
    resource_tracker.ensure_running()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("rank", [0, 8], ids=["full", "LoRA"])
def test_each_phase_gives_its_tensors_and_processes_back(rank):
    """GRPO has a reference policy here: a second adapter, or a second model."""
    content = preset_params("smoke").model_dump(mode="json")
    content["model"]["lora"]["rank"] = rank
    content["sft"]["num_epochs"], content["grpo"]["beta"] = 1, 0.1
    content["evaluate"]["num_samples"] = 0
    Path("data/raw").mkdir(parents=True)
    write_json(Path("params.yaml"), content)
    run("prepare")
    before = held()
    for phase in (
        lambda: run("sft"),
        lambda: run("grpo"),
        lambda: evaluate("grpo"),
        lambda: grade("grpo"),
        lambda: export("grpo"),
    ):
        phase()
        now = held()
        assert now.num_bytes <= before.num_bytes + ALLOWED_BYTES
        assert now.processes == before.processes
