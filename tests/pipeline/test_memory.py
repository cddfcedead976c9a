"""Phases that run one after the other in one process leave nothing behind."""

import gc
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from lib.artifacts import write_json
from lib.params import preset_params
from tests.live import held
from tests.pipeline.stages import evaluate, export, grade, run

ALLOWED_BYTES = 1024
"""Constants that libraries keep; the smoke model's smallest matrix has 4096."""


@pytest.fixture
def uncollected(monkeypatch, tmp_path):
    """Python's own garbage collection off, which may come late or never on a full GPU; the
    process that is meant to stay started: what watches `multiprocessing`."""
    monkeypatch.chdir(tmp_path)
    resource_tracker.ensure_running()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("rank", [0, 8], ids=["full", "LoRA"])
def test_each_phase_gives_its_tensors_and_processes_back(rank):
    """With a reference policy in GRPO: a second adapter, or a second model."""
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
