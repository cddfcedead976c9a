"""Packing, skipping and shared prompts leave the gradient as it is, and save forward passes."""

import dataclasses
import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from lib.engines.transformers import TransformersEngine
from lib.training.grpo.policy_gradient import PolicyGradientTrainer
from lib.training.grpo.scoring import Scorer
from tests.lib.training.steps import Steps, letters, reward_with

KNOBS = {"max_steps": 1, "micro_batch_size": 4, "learning_rate": 0.02, "warmup_ratio": 0.0}

OBJECTIVES: dict[str, dict[str, Any]] = {
    "dapo": {"loss": "dapo"},
    "grpo": {"loss": "grpo"},
    "dr_grpo": {"loss": "dr_grpo"},
    "bnpo": {"loss": "bnpo"},
    "gspo": {"loss": "grpo", "importance_level": "sequence"},
    "kl": {"loss": "dapo", "beta": 0.5},
    "reinforce": {"loss": "reinforce"},
    "truncation masked": {
        "loss": "grpo",
        "mask_truncated": True,
        "stop": "e",
    },
    "two iterations": {"loss": "dapo", "num_iterations": 2, "max_steps": 2},
}


@pytest.fixture
def some(built):
    """Build a trainer with equal rewards for two problems of four."""
    return lambda **changes: reward_with(built(**{**KNOBS, **changes}), letters_of_some)


def letters_of_some(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
    """Reward letters in two problems of four, and the other two equally."""
    counted = prompts[0], prompts[4]
    rewards = letters(completions=completions)
    return [
        reward if prompt in counted else 1.0
        for prompt, reward in zip(prompts, rewards, strict=True)
    ]


def score_plainly(patch: pytest.MonkeyPatch) -> None:
    """Score all rows as generated, each with its prompt."""
    patch.setattr(PolicyGradientTrainer, "_can_skip", lambda self, batch: False)
    patch.setattr(Scorer, "__init__", functools.partialmethod(_unshared, Scorer.__init__))
    patch.setattr(PolicyGradientTrainer, "_sorts_rows", False)


def _unshared(scorer: Scorer, init: Any, policy: Any, **kwargs: Any) -> None:
    init(scorer, policy, **{**kwargs, "shares_prompts": False})


def last_gradients(trainer: PolicyGradientTrainer) -> dict[str, Tensor]:
    steps = Steps(trainer)
    trainer.train()
    return steps.gradients[-1]


def assert_same_gradients(ours: dict[str, Tensor], plain: dict[str, Tensor]) -> None:
    largest = max(float(gradient.abs().max()) for gradient in plain.values())
    assert largest > 1e-5
    assert ours.keys() == plain.keys()
    for name, gradient in plain.items():
        assert (ours[name] - gradient).abs().max() < 1e-6 * max(largest, 1.0), name


@pytest.mark.parametrize("name", [*OBJECTIVES, "adapter"])
def test_the_gradient_is_that_of_rows_as_they_were_generated(some, smoke, monkeypatch, name):
    changes = OBJECTIVES.get(name, {"model": smoke.model})
    ours = last_gradients(some(**changes))
    score_plainly(monkeypatch)
    assert_same_gradients(ours, last_gradients(some(**changes)))


class OneEnds(TransformersEngine):
    """Engine: one completion ends, after two tokens; the others run into the limit."""

    def generate(self, *args: Any) -> Any:
        (first, *rest), *groups = super().generate(*args)
        short = {"token_ids": first.token_ids[:2], "log_probs": first.log_probs[:2]}
        ended = dataclasses.replace(first, finish="eos", **short)
        groups = [[ended, *rest], *groups]
        return [
            [one if one is ended else dataclasses.replace(one, finish="length") for one in group]
            for group in groups
        ]


@pytest.mark.parametrize("loss", ["dapo", "cispo"])
def test_few_tokens_give_one_gradient_in_any_micro_batches(some, loss):
    def gradients(size: int) -> dict[str, Tensor]:
        trainer = some(micro_batch_size=size, loss=loss, mask_truncated=True)
        engine = OneEnds(trainer.model, trainer.processing_class, batch_size=16)
        trainer.roll_out_with(engine, live=True)
        return last_gradients(trainer)

    whole = gradients(16)
    for size in (4, 1):
        assert_same_gradients(gradients(size), whole)


def forward_shapes(trainer: PolicyGradientTrainer) -> list[tuple[int, ...]]:
    """List the shapes of the policy's inputs in passes with gradients."""
    shapes: list[tuple[int, ...]] = []

    def note(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            shapes.append(tuple(kwargs["input_ids"].shape))

    trainer.model.register_forward_pre_hook(note, with_kwargs=True)
    trainer.train()
    return shapes


def test_prompts_are_computed_once_and_idle_rows_not_at_all(some, monkeypatch):
    shapes = forward_shapes(some())
    assert [rows for rows, _ in shapes] == [1, 4] * 2
    assert all(columns <= 17 for _, columns in shapes[1::2])
    score_plainly(monkeypatch)
    plain = forward_shapes(some())
    assert [rows for rows, _ in plain] == [4] * 4
    area, plain_area = (sum(rows * columns for rows, columns in s) for s in (shapes, plain))
    assert area < 0.3 * plain_area
