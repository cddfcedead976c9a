"""`optimizer` in params: the same AdamW, its state elsewhere, through transformers' Trainer."""

import pytest
import torch
from torch import Tensor

from lib.training.phase.optim import MemoryEfficientAdamW
from tests.lib.training.runs import changed
from tests.lib.training.steps import plain_sft

NAME = "memory_efficient_adamw"


@pytest.fixture
def sft(sets, base, smoke, full, tmp_path):
    """Build an SFT trainer with changes of its section, in a folder of its own."""

    def build(folder="run", **changes):
        common = {"save_steps": 0, "keep_checkpoints": 0, "weight_decay": 0.1, "num_epochs": 1}
        params = changed(smoke, {"sft": {**common, **changes}})
        return plain_sft(sets.sft[:64], base, params, tmp_path / folder, model=full)

    return build


def weights(trainer) -> list[Tensor]:
    return [weight.detach() for weight in trainer.model.parameters()]


def test_a_run_has_torchs_trajectory_and_schedule(sft):
    ours, torchs = sft(optimizer=NAME), sft()
    ours.train()
    torchs.train()
    assert isinstance(ours.optimizer.optimizer, MemoryEfficientAdamW)
    assert not isinstance(torchs.optimizer.optimizer, MemoryEfficientAdamW)
    torch.testing.assert_close(weights(ours), weights(torchs), atol=1e-5, rtol=1e-4)
    assert {group["weight_decay"] for group in ours.optimizer.param_groups} == {0.1, 0.0}
    assert ours.optimizer.param_groups[0]["lr"] == torchs.optimizer.param_groups[0]["lr"] < 0.02


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_every_schedule_begins_with_the_warm_up(sft, schedule):
    trainer = sft(lr_schedule=schedule, warmup_ratio=0.5, learning_rate=0.02, logging_steps=1)
    trainer.train()
    rates = [point["learning_rate"] for point in trainer.state.log_history if "loss" in point]
    assert rates[:3] == pytest.approx([0.0, 0.01, 0.02])


def test_a_resumed_run_ends_with_the_weights_of_a_whole_one(sft, tmp_path):
    whole, resumed = (sft(run, optimizer=NAME, save_steps=2) for run in ("whole", "resumed"))
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert whole.state.global_step == resumed.state.global_step == 4
    torch.testing.assert_close(weights(whole), weights(resumed), atol=0, rtol=0)
