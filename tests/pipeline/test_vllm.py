"""The smoke preset runs with a vLLM server as every engine, from `./reckon vllm-server` on."""

import csv
from pathlib import Path

import pytest

from lib.artifacts import read_json
from tests.pipeline.test_end_to_end import ALL, clone_with_smoke
from tests.vllm_server import served, vllm_server

pytestmark = pytest.mark.vllm

GAP = "sampling/sampling_logp_difference/mean"


def test_the_pipeline_runs_with_one_server_for_everything(tmp_path, monkeypatch):
    clone = clone_with_smoke(tmp_path / "reckon")
    server = {"engine": "vllm-server"}
    clone.change(validation=server, rollout=server, evaluate=server)
    clone.dvc("repro", "prepare")
    model, log = clone.folder / "data/models/base", tmp_path / "log"
    with vllm_server(clone.folder, params=Path("params.yaml"), model=model, log=log) as address:
        monkeypatch.setenv("RECKON_VLLM_URL", address)
        assert clone.repro("dvc") == ALL[2:]
        assert len(served(address)) == 1
    curve = list(csv.DictReader(clone.read("reports/curves/grpo.csv").splitlines()))
    assert len(curve) == 3
    assert all(0 < float(point[GAP]) < 1e-5 for point in curve)
    validated = clone.read("reports/curves/grpo_validation.csv").splitlines()
    assert len(validated) == 1 + 3  # steps 0, 2 and 3
    for checkpoint in ("base", "sft", "grpo"):
        metrics = read_json(clone.folder / f"reports/metrics/evaluate/{checkpoint}.json")
        assert metrics["held_out"]["greedy"]["n"] == 12
