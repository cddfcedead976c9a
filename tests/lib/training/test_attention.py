"""Attention is computed in 16 bit from a trainer's construction to evaluation.

`tests/pipeline/test_presets.py` checks every preset.
"""

from typing import Any

import pytest

from lib.evaluation.completions import complete_checkpoint
from lib.params import preset_params
from tests.attention_16bit import stand_in
from tests.lib.training import sharded
from tests.lib.training.runs import on_ranks, outputs_in, read_changes, run, write_inputs

MASTERS = {"dtype": "float32", "mixed_precision": "bf16", "lora": {"rank": 0}}
HALF = {"dtype": "bfloat16", "mixed_precision": "bf16", "gradient_checkpointing": True}


def changes(model: dict[str, Any]) -> dict[str, Any]:
    own = preset_params("smoke").model.lora.model_dump(mode="json")
    lora = {"lora": {**own, **model.get("lora", {})}}
    return {
        "model": {**model, **lora, "attention": "flash_attention_2"},
        "sft": {"num_epochs": 1, "eval_steps": 1},
        "grpo": {"max_steps": 2, "eval_steps": 1, "beta": 0.1},
        "dpo": {"num_epochs": 1, "eval_steps": 1},
    }


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("stage", "model"),
    [("sft", MASTERS), ("grpo", MASTERS), ("grpo", HALF), ("dpo", MASTERS)],
    ids=["sft", "grpo", "grpo-lora", "dpo"],
)
def test_no_attention_meets_float32(stage, model, base, sets, tmp_path, monkeypatch):
    stand_in(monkeypatch)
    folder = write_inputs(tmp_path / "read", base, sets, num_sft=16, **changes(model))
    run(stage, folder)
    complete_checkpoint(
        outputs_in(folder, stage).model,
        params=read_changes(folder),
        completions=folder / "completions.jsonl",
        base=folder / "base",
        problems=folder / "validation",
    )


@pytest.mark.slow
@pytest.mark.parametrize("way", ["shards", "replicas"])
def test_no_attention_meets_float32_on_two_ranks(way, base, sets, tmp_path):
    folder = write_inputs(tmp_path / "read", base, sets, num_sft=16, **changes(MASTERS))
    ran = on_ranks(2, sharded.main, way, "grpo", folder, log=folder / "log")
    assert ran.returncode == 0, ran.stdout
