"""Every knob of the objective acts in a real training step on the smoke model."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lib.engines.transformers import TransformersEngine
from lib.errors import UserError
from lib.objectives import (
    group_advantages,
    policy_loss,
)
from lib.params import Params
from lib.params.schema import Model
from lib.problems.generated import GeneratedSets
from lib.trainers.policy_gradient import PolicyGradientTrainer
from lib.trainers.tracking import curve_points
from tests.lib.trainers.steps import Steps, build, letters, reward_with

Builder = Callable[..., PolicyGradientTrainer]
GAP = "sampling/sampling_logp_difference"


@pytest.fixture
def built(sets: GeneratedSets, base: Path, smoke: Params, full: Model, tmp_path: Path) -> Builder:
    def builder(**changes: Any) -> PolicyGradientTrainer:
        trainer = build(sets.grpo, base, smoke, tmp_path, **{"model": full, **changes})
        return reward_with(trainer, letters)

    return builder


def log_probs(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """[B, T] of the completions' tokens."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    seen = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    length = batch["completion_ids"].shape[1]
    logits = model(input_ids=ids, attention_mask=seen).logits[:, -length - 1 : -1]
    return logits.log_softmax(-1).gather(-1, batch["completion_ids"].unsqueeze(-1)).squeeze(-1)


OBJECTIVES: dict[str, dict[str, Any]] = {
    "grpo": {"loss": "grpo"},
    "bnpo": {"loss": "bnpo"},
    "dr_grpo": {"loss": "dr_grpo"},
    "dapo": {"loss": "dapo"},
    "clip higher": {"loss": "grpo", "epsilon": 0.01, "epsilon_high": 0.5},
    "gspo": {"loss": "grpo", "importance_level": "sequence"},
    "kl": {"loss": "grpo", "beta": 0.5},
    "kl of GRPO": {"loss": "grpo", "beta": 0.5, "kl_weighted": False},
    "mask": {"loss": "grpo", "mask_truncated": True},
    "reinforce": {"loss": "reinforce", "num_iterations": 1},
}


def gradients(
    trainer: PolicyGradientTrainer, batch: dict[str, Tensor], mask: Tensor, **knobs: Any
) -> dict[str, Tensor]:
    """Of our own objective, at the trainer's weights."""
    trainer.model.zero_grad()
    policy_loss(log_probs(trainer.model, batch), batch["advantages"], mask, **knobs).loss.backward()
    return {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_of_a_step_is_the_objectives_and_no_others(built: Builder, name: str) -> None:
    """The second step on a batch, whose ratio is not 1; `reinforce` has one step on each."""
    common = {"max_steps": 2, "num_iterations": 2, "learning_rate": 0.02, "warmup_ratio": 0.0}
    trainer = built(**{**common, **OBJECTIVES[name]})
    initial = copy.deepcopy(trainer.model)
    steps = Steps(trainer)
    trainer.train()

    batch, theirs = steps.batches[1], steps.gradients[1]
    trainer.model.load_state_dict(steps.weights[1], strict=False)
    seen = batch["completion_mask"]
    old = batch.get("old_per_token_logps")
    plain = {"loss_type": "reinforce" if name == "grpo" else "grpo", "old_log_probs": old}
    knobs: dict[str, Any] = {
        "loss_type": OBJECTIVES[name]["loss"],
        "old_log_probs": old,
        "clip_low": trainer.args.epsilon,
        "clip_high": trainer.args.epsilon_high,
        "ratio_level": trainer.args.importance_sampling_level,
        "reference_log_probs": log_probs(initial, batch).detach(),
        "kl_coef": trainer.args.beta,
        "kl_weighted": trainer.args.use_bias_correction_kl,
        "max_completion_length": trainer.args.max_completion_length,
    }
    ours = gradients(trainer, batch, seen * batch.get("tool_mask", 1), **knobs)
    others = gradients(trainer, batch, seen, **plain)
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    assert largest > 1e-5
    torch.testing.assert_close(ours, theirs, atol=1e-4 * largest, rtol=1e-3)
    if name != "reinforce":
        differences = [(others[key] - theirs[key]).abs().max() for key in theirs]
        assert max(differences) > 1e-2 * largest


class Stale(TransformersEngine):
    """An engine that keeps a copy of the policy, and that nobody keeps in step with it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model = copy.deepcopy(self.model)

    def sync(self, policy: Any) -> None:
        pass


@pytest.mark.parametrize("live", [True, False])
def test_a_sampler_left_on_old_weights_ends_the_run(built: Builder, live: bool) -> None:
    """Measured in the loss for an engine on the policy's weights, by TRL for one with its own."""
    trainer = built(max_steps=20, learning_rate=0.02, warmup_ratio=0.0)
    engine = Stale(trainer.model, trainer.processing_class, batch_size=16)
    trainer.roll_out_with(engine, trainer.rollouts.sampling, live=live)
    with pytest.raises(UserError, match=r"step [2-9]: .* more than rollout.max_logp_difference"):
        trainer.train()
    assert max(trainer._metrics["train"][f"{GAP}/mean"]) > 0.05


@pytest.mark.parametrize("live", [True, False])
def test_the_samplers_gap_is_logged_in_every_step_and_is_rounding(
    built: Builder, live: bool
) -> None:
    trainer = built(learning_rate=0.02, warmup_ratio=0.0)
    trainer.roll_out_with(trainer.rollouts.engine, trainer.rollouts.sampling, live=live)
    trainer.train()
    points = curve_points(trainer.state)
    assert len(points) == 3
    assert all(0 < point[f"{GAP}/mean"] < 1e-5 for point in points)
    assert all(point[f"{GAP}/mean"] <= point[f"{GAP}/max"] < 1e-4 for point in points)


@pytest.mark.parametrize("advantage", ["none", "mean", "group", "batch", "rloo"])
def test_advantages_are_those_that_params_name(built: Builder, advantage: str) -> None:
    trainer = built(advantage=advantage, max_steps=1)
    steps = Steps(trainer)
    earned: list[float] = []
    trainer.reward_funcs[0] = lambda **columns: earned.extend(letters(**columns)) or earned
    trainer.train()
    ours = group_advantages(0.25 * torch.tensor(earned).view(4, 4), baseline=advantage).flatten()
    used = steps.batches[0]["advantages"]
    # TRL shuffles a batch once it is scored.
    torch.testing.assert_close(used.sort().values, ours.sort().values)
    assert list(trainer._logs["advantages"]) == pytest.approx(ours.tolist())
