"""Packing, skipping and shared prompts leave the gradient as it is, and save forward passes."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lib.engines.base import GeneratedCompletion
from lib.training.grpo.policy_gradient import PolicyGradientTrainer
from lib.training.grpo.scoring import Scorer
from tests.lib.training.steps import EditingEngine, letters, reward_with, train_steps

KNOBS = {"max_steps": 1, "micro_batch_size": 4, "learning_rate": 0.02, "warmup_ratio": 0.0}

OBJECTIVES = {
    "dapo": {"loss": "dapo"},
    "bnpo": {"loss": "bnpo"},
    "kl": {"loss": "dapo", "beta": 0.5},
    "reinforce": {"loss": "reinforce"},
    "truncation masked": {"loss": "grpo", "mask_truncated": True, "stop": "e"},
    "two iterations": {"loss": "dapo", "num_iterations": 2, "max_steps": 2},
}


@pytest.fixture
def some(built):
    """Build a trainer with equal rewards for two problems of four."""
    return lambda **changes: reward_with(built(**{**KNOBS, **changes}), letters_of_some)


def letters_of_some(prompts: list[Any], completions: list[Any], **columns) -> list[float]:
    """Reward letters in two problems of four, and the other two equally."""
    counted = prompts[0], prompts[4]
    rewards = letters(completions=completions)
    return [
        reward if prompt in counted else 1.0
        for prompt, reward in zip(prompts, rewards, strict=True)
    ]


def score_plainly(patch: pytest.MonkeyPatch):
    """Score all rows as generated, each with its prompt."""
    init = Scorer.__init__

    def unshared(scorer, policy, **settings):
        init(scorer, policy, **{**settings, "shares_prompts": False})

    patch.setattr(PolicyGradientTrainer, "_can_skip", lambda self, batch: False)
    patch.setattr(Scorer, "__init__", unshared)
    patch.setattr(
        "lib.training.grpo.policy_gradient.sorted_rows", lambda rows, signals: range(len(rows))
    )


def assert_same_gradients(ours: dict[str, Tensor], plain: dict[str, Tensor]):
    largest = max(float(gradient.abs().max()) for gradient in plain.values())
    assert largest > 1e-5
    torch.testing.assert_close(ours, plain, atol=1e-6 * max(largest, 1.0), rtol=0)


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("name", [*OBJECTIVES, "adapter"])
def test_the_gradient_is_that_of_rows_as_they_were_generated(some, monkeypatch, name):
    changes = OBJECTIVES.get(name, {"lora": True})
    ours = train_steps(some(**changes)).gradients[-1]
    score_plainly(monkeypatch)
    assert_same_gradients(ours, train_steps(some(**changes)).gradients[-1])


def one_ends(number: int, row: GeneratedCompletion) -> dict[str, Any]:
    """End one completion after two tokens; the others run into the limit."""
    if number:
        return {"finish": "length"}
    return {"finish": "eos", "token_ids": row.token_ids[:2], "log_probs": row.log_probs[:2]}


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("loss", ["dapo", "cispo"])
def test_few_tokens_give_one_gradient_in_any_micro_batches(some, loss):
    def gradients(size):
        trainer = some(micro_batch_size=size, loss=loss, mask_truncated=True)
        trainer.roll_out_with(EditingEngine(trainer, one_ends), live=True)
        return train_steps(trainer).gradients[-1]

    whole = gradients(16)
    for size in (4, 1):
        assert_same_gradients(gradients(size), whole)


def forward_shapes(trainer: PolicyGradientTrainer) -> list[tuple[int, ...]]:
    """List the shapes of the policy's inputs in passes with gradients."""
    shapes = []

    def note(module, args, kwargs):
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
