"""GRPO in reckon's terms becomes TRL's arguments, and TRL's trainer moves the policy by them."""

from pathlib import Path

import pytest
import torch

from lib.errors import UserError
from lib.params import Params
from lib.params.model import Model
from lib.params.training import Grpo
from lib.problems.generated import GeneratedSets
from lib.prompts import prompt_format
from lib.trainers.batches import micro_batches
from lib.trainers.grpo import build_grpo, grpo_arguments
from lib.trainers.tracking import curve_points


def arguments(params: Params, scratch: Path, **changes: object):
    grpo = Grpo.model_validate({**params.grpo.model_dump(), **changes})
    return grpo_arguments(
        grpo,
        rollout=params.rollout,
        reward=params.reward,
        model=params.model,
        seed=params.seed,
        scratch=scratch,
    )


def test_trls_batch_fields_are_derived_from_problems_and_groups(
    smoke: Params, tmp_path: Path
) -> None:
    derived = arguments(smoke, tmp_path, prompts_per_step=6, group_size=4, micro_batch_size=8)
    assert derived.num_generations == 4
    assert derived.per_device_train_batch_size == 8
    assert derived.gradient_accumulation_steps == 3
    assert derived.generation_batch_size == 24


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"epsilon_high": 0.0}, "epsilon_high", 0.2),
        ({"epsilon_high": 0.28}, "epsilon_high", 0.28),
        ({"advantage": "group"}, "scale_rewards", "group"),
        ({"advantage": "batch"}, "scale_rewards", "batch"),
        ({"advantage": "mean"}, "scale_rewards", "none"),
        ({"loss": "dr_grpo"}, "loss_type", "dr_grpo"),
        ({"beta": 0.04}, "beta", 0.04),
        ({"lr_schedule": "cosine"}, "lr_scheduler_type", "cosine"),
    ],
)
def test_a_knob_reaches_trl(
    smoke: Params, tmp_path: Path, changes: dict[str, object], field: str, value: object
) -> None:
    given = getattr(arguments(smoke, tmp_path, **changes), field)
    if field == "epsilon_high" and given is None:
        given = smoke.grpo.epsilon
    assert given == value


def test_ranks_share_a_micro_batch_or_it_is_refused() -> None:
    assert micro_batches(256, micro_batch=64, world_size=2) == {
        "per_device_train_batch_size": 32,
        "gradient_accumulation_steps": 4,
    }
    with pytest.raises(UserError, match="cannot be shared by 3 processes; use a multiple of 3"):
        micro_batches(256, micro_batch=64, world_size=3)


@pytest.mark.parametrize("lora", [True, False])
def test_a_step_moves_the_policy_by_the_presets_rewards(
    sets: GeneratedSets, base: Path, smoke: Params, full: Model, tmp_path: Path, lora: bool
) -> None:
    def longer(completions: list[object], **columns: object) -> list[float]:
        return [float(number % 4) for number in range(len(completions))]

    trainer = build_grpo(
        sets.grpo,
        init=base,
        base=base,
        prompt_format=prompt_format(smoke.prompt.format),
        system=smoke.prompt.system,
        grpo=smoke.grpo,
        rollout=smoke.rollout,
        reward=smoke.reward,
        model=smoke.model if lora else full,
        seed=smoke.seed,
        scratch=tmp_path,
    )
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
    """TRL would drop the incomplete step, train on nothing and report success."""
    with pytest.raises(UserError, match=r"prompts_per_step=4: there are only 3 GRPO problems"):
        build_grpo(
            list(sets.grpo)[:3],
            init=base,
            base=base,
            prompt_format=prompt_format(smoke.prompt.format),
            system=smoke.prompt.system,
            grpo=smoke.grpo,
            rollout=smoke.rollout,
            reward=smoke.reward,
            model=smoke.model,
            seed=smoke.seed,
            scratch=tmp_path,
        )
