"""`optimizer` in params: the same AdamW, its state elsewhere, through transformers' Trainer."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lib.params import Params
from lib.params.model import Model
from lib.params.training import Sft
from lib.problems.generated import GeneratedSets
from lib.training.phase.optim import MemoryEfficientAdamW
from tests.lib.training.steps import plain_sft

NAME = "memory_efficient_adamw"


def sft(
    sets: GeneratedSets, base: Path, params: Params, model: Model, scratch: Path, **changes: Any
) -> Any:
    common = {"save_steps": 0, "keep_checkpoints": 0, "weight_decay": 0.1, "num_epochs": 1}
    section = Sft.model_validate({**params.sft.model_dump(), **common, **changes})
    return plain_sft(sets.sft[:64], base, params, scratch, sft=section, model=model)


def weights(trainer: Any) -> list[Tensor]:
    return [weight.detach() for weight in trainer.model.parameters()]


def test_a_run_has_torchs_trajectory_and_schedule(sets, base, smoke, full, tmp_path):
    ours = sft(sets, base, smoke, full, tmp_path, optimizer=NAME)
    torchs = sft(sets, base, smoke, full, tmp_path)
    ours.train()
    torchs.train()
    assert isinstance(ours.optimizer.optimizer, MemoryEfficientAdamW)
    assert not isinstance(torchs.optimizer.optimizer, MemoryEfficientAdamW)
    for one, other in zip(weights(ours), weights(torchs), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert {group["weight_decay"] for group in ours.optimizer.param_groups} == {0.1, 0.0}
    assert ours.optimizer.param_groups[0]["lr"] == torchs.optimizer.param_groups[0]["lr"] < 0.02


def test_a_resumed_run_ends_with_the_weights_of_a_whole_one(sets, base, smoke, full, tmp_path):
    whole = sft(sets, base, smoke, full, tmp_path / "whole", optimizer=NAME, save_steps=2)
    whole.train()
    resumed = sft(sets, base, smoke, full, tmp_path / "resumed", optimizer=NAME, save_steps=2)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert whole.state.global_step == resumed.state.global_step == 4
    assert all(map(torch.equal, weights(whole), weights(resumed)))
