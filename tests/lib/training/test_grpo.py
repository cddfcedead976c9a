"""GRPO from params to a trainer that moves the policy by the preset's rewards."""

from pathlib import Path

import pytest
import torch

from lib.errors import UserError
from lib.params import Params
from lib.params.model import Model
from lib.problems.generated import GeneratedSets
from lib.training.phase.launch import micro_batches
from lib.training.phase.tracking import curve_points
from tests.lib.training.steps import plain_grpo


def test_ranks_share_a_micro_batch_or_it_is_refused() -> None:
    assert micro_batches(256, micro_batch=64, world_size=2) == {
        "per_device_train_batch_size": 32,
        "gradient_accumulation_steps": 4,
    }
    with pytest.raises(UserError, match="3 processes"):
        micro_batches(256, micro_batch=64, world_size=3)


@pytest.mark.parametrize("lora", [True, False])
def test_a_step_moves_the_policy_by_the_presets_rewards(
    sets: GeneratedSets, base: Path, smoke: Params, full: Model, tmp_path: Path, lora: bool
) -> None:
    def longer(completions: list[object], **columns: object) -> list[float]:
        return [float(number % 4) for number in range(len(completions))]

    trainer = plain_grpo(sets.grpo, base, smoke, tmp_path, model=smoke.model if lora else full)
    assert [function.__name__ for function in trainer.reward_funcs] == ["format", "answer"]
    assert trainer.reward_weights.tolist() == [0.25, 1.0]

    # An untrained policy earns nothing, so that a step needs a reward that varies.
    trainer.reward_funcs = [longer, longer]
    trainable = {n: p for n, p in trainer.model.named_parameters() if p.requires_grad}
    assert all("lora_" in name for name in trainable) == lora
    before = {name: weight.detach().clone() for name, weight in trainable.items()}
    trainer.train()
    assert any(not torch.equal(before[name], weight) for name, weight in trainable.items())

    points = curve_points(trainer.state)
    assert [point["step"] for point in points] == list(range(1, smoke.grpo.max_steps + 1))
    assert points[0]["reward"] == pytest.approx(1.25 * 1.5)
    assert not any("time" in name for name in points[0])


def test_fewer_problems_than_a_step_takes_are_refused(
    sets: GeneratedSets, base: Path, smoke: Params, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"prompts_per_step=4: .* 3 "):
        plain_grpo(sets.grpo[:3], base, smoke, tmp_path)
