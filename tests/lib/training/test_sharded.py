"""Weights cut across two ranks (FSDP2 on CPUs) train and are saved as whole ones are."""

import contextlib
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lib.artifacts import read_json, write_json
from lib.core.errors import UserError
from lib.training.phase.ranks import check_sharding
from lib.training.phase.warning_signs import GAP
from tests.lib.training import sharded
from tests.lib.training.runs import CHANGES, curve, on_ranks, run, write_inputs
from tests.lib.training.test_ranks import LORA, lora


@pytest.fixture
def inputs(base, sets, tmp_path):
    """Write inputs, copied by every run."""
    return write_inputs(tmp_path / "inputs", base, sets, num_sft=48)


BREVITY = "plugins/rewards/examples.py:brevity"


def changes(rank: int) -> dict[str, Any]:
    """Vary rewards though the policy answers nothing; give GRPO a reference policy."""
    common = {"save_steps": 2, "keep_checkpoints": 1, "eval_steps": 2}
    return {
        "model": lora(rank),
        "sft": {"num_epochs": 1, "logging_steps": 1, "learning_rate": 0.002, **common},
        "grpo": {"max_steps": 4, "learning_rate": 0.01, "beta": 0.1, **common},
        "dpo": {"num_epochs": 1, "batch_size": 4, "micro_batch_size": 4, **common},
        "reward": {"extra": [BREVITY], "weights": [0.25, 1.0, 100.0]},
    }


def trained(
    way: str, stage: str, inputs: Path, rank: int, *, engine: str = "transformers", **sections
) -> Path:
    folder = inputs.with_name(way)
    shutil.copytree(inputs, folder)
    engines = {"rollout": {"engine": engine}, "validation": {"engine": engine}}
    write_json(folder / CHANGES, {**changes(rank), **engines, **sections})
    ran = begin(way, stage, folder)
    assert ran.returncode == 0, ran.stdout
    return folder


def begin(way: str, stage: str, folder: Path, *stop: int) -> "subprocess.CompletedProcess[str]":
    """Train on two ranks; `alone` is one process."""
    if way == "alone":
        return on_ranks(1, run, stage, folder, log=folder / "log")
    return on_ranks(2, sharded.main, way, stage, folder, *stop, log=folder / "log")


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    (file,) = checkpoint.glob("*.safetensors")
    return load_file(file)


def agree(one: Path, other: Path):
    names, others = ({path.name for path in folder.iterdir()} for folder in (one, other))
    assert names == others
    torch.testing.assert_close(weights(one), weights(other), rtol=0, atol=1e-5)


def held(folder: Path) -> list[float]:
    """Return every rank's share of the weights."""
    counts = [read_json(folder / f"{rank}.json") for rank in range(2)]
    return [count["held"] / count["total"] for count in counts]


def trained_both_ways(stage: str, inputs: Path, rank: int, **changes: Any) -> tuple[Path, Path]:
    """Train with shards and with replicas, and assert that both end with the same model."""
    cut, whole = (trained(way, stage, inputs, rank, **changes) for way in ("shards", "replicas"))
    assert held(cut) == [0.5, 0.5] and held(whole) == [1.0, 1.0]
    agree(cut / "models" / stage, whole / "models" / stage)
    return cut, whole


@pytest.mark.slow
@LORA
def test_sft_on_two_ranks_writes_the_checkpoint_of_one_process(rank, inputs):
    alone = trained("alone", "sft", inputs, rank)
    # Checkpoints differ in their state to resume from (random states, shards), not in the model.
    model = {path.name for path in (alone / "models/sft").iterdir()}
    points = curve(alone / "curve.csv")
    for way, share in {"shards": 0.5, "replicas": 1.0}.items():
        two = trained(way, "sft", inputs, rank)
        assert held(two) == [share, share]
        agree(two / "models/sft", alone / "models/sft")
        for ours, theirs in zip(curve(two / "curve.csv"), points, strict=True):
            assert float(ours["loss"]) == pytest.approx(float(theirs["loss"]), rel=1e-5)
        kept = two / "scratch/sft/checkpoints/checkpoint-3"
        assert model <= {path.name for path in kept.iterdir()}


@pytest.mark.slow
def test_the_best_of_sharded_weights_is_handed_on_whole(inputs):
    """Without a right answer, the first point, of the base model, is the best."""
    shutil.copy(inputs / "validation/harder.jsonl", inputs / "validation/validation.jsonl")
    sections = {"sft": changes(0)["sft"] | {"select": "best"}}
    sections["validation"] = {"sets": ["validation"]}
    folder = trained("shards", "sft", inputs, 0, **sections)
    # Measured behind a validation, when the root's own weights are still gathered.
    assert max(held(folder)) < 1
    assert read_json(folder / "metrics.json")["selected"]["step"] == 0
    written, base = weights(folder / "models/sft"), weights(inputs / "base")
    torch.testing.assert_close(written, base, rtol=0, atol=0)


@pytest.mark.slow
@LORA
@pytest.mark.parametrize("stage", ["grpo", "dpo"])
def test_sharded_weights_end_as_two_whole_copies_do(stage, rank, inputs):
    """In GRPO, rank 1 has generated its completions long before rank 0."""
    cut, _ = trained_both_ways(stage, inputs, rank)
    end = weights(cut / "models" / stage)
    # An adapter's second matrices start at 0.
    moved = [weight for name, weight in end.items() if "lora_B" in name]
    if not rank:
        before = weights(cut / "base")
        moved = [weight - before[name] for name, weight in end.items()]
    assert max(weight.abs().max().item() for weight in moved) > 1e-3


@pytest.mark.vllm
@pytest.mark.parametrize(("engine", "rank"), [("vllm", 0), ("vllm-server", 8)])
def test_sharded_weights_reach_vllm_as_whole_ones_do(engine, rank, inputs, request):
    """Weights go to every rank's own engine, or from rank 0 to a server; all ranks gather them.

    In test_ranks.py both engines get either kind of weights.
    """
    if engine == "vllm-server":
        request.getfixturevalue("server")
    for folder in trained_both_ways("grpo", inputs, rank, engine=engine):
        points = curve(folder / "curve.csv")
        assert len(points) > 1
        assert max(float(point[f"{GAP}/mean"]) for point in points) < 1e-5


@pytest.mark.vllm
@LORA
@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_sharded_weights_are_validated_by_vllm_as_whole_ones_are(stage, rank, inputs):
    cut, whole = trained_both_ways(stage, inputs, rank, engine="vllm")
    points = (cut / "validation.csv").read_text("utf-8")
    assert len(points.splitlines()) > 3
    assert points == (whole / "validation.csv").read_text("utf-8")


@pytest.mark.slow
def test_an_interrupted_run_with_sharded_weights_resumes(inputs):
    whole = trained("shards", "sft", inputs, 0)
    twice = inputs.with_name("twice")
    shutil.copytree(inputs, twice)
    shutil.copy(whole / CHANGES, twice)
    assert begin("shards", "sft", twice, 2).returncode != 0
    assert not (twice / "models/sft").exists()
    ran = begin("shards", "sft", twice)
    assert ran.returncode == 0, ran.stdout
    assert "sft resumes from step 2" in ran.stdout
    agree(twice / "models/sft", whole / "models/sft")


@pytest.mark.parametrize(
    ("sharding", "fault"),
    [
        ({}, ""),
        ({"fsdp_version": 2}, ""),
        ({"fsdp_version": 1}, "FSDP's first version"),
        ({"zero_stage": 2}, "DeepSpeed"),
    ],
)
def test_only_fsdp2_may_cut_the_weights(sharding, fault):
    trainer = SimpleNamespace(
        is_fsdp_enabled="fsdp_version" in sharding,
        is_deepspeed_enabled="zero_stage" in sharding,
        accelerator=SimpleNamespace(
            state=SimpleNamespace(fsdp_plugin=SimpleNamespace(**sharding)),
        ),
    )
    with pytest.raises(UserError, match=fault) if fault else contextlib.nullcontext():
        check_sharding(trainer)
