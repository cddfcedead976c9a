"""Packing, skipping and shared prompts leave the gradient as it is, and save forward passes."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lib.params import Params
from lib.params.model import Model
from lib.problems.generated import GeneratedSets
from lib.prompts import prompt_format
from lib.trainers.batching import PackingTrainer, arranged, trim
from lib.trainers.policy_gradient import PolicyGradientTrainer
from tests.lib.trainers.steps import Steps, build, letters, reward_with

Builder = Callable[..., PolicyGradientTrainer]
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
        "format": dataclasses.replace(prompt_format("working_out"), stop_strings=("e",)),
    },
    "two iterations": {"loss": "dapo", "num_iterations": 2, "max_steps": 2},
}


@pytest.fixture
def built(sets: GeneratedSets, base: Path, smoke: Params, full: Model, tmp_path: Path) -> Builder:
    def builder(**changes: Any) -> PolicyGradientTrainer:
        trainer = build(sets.grpo, base, smoke, tmp_path, **{"model": full, **KNOBS, **changes})
        return reward_with(trainer, letters_of_some)

    return builder


def letters_of_some(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
    """Two problems of four have equal rewards."""
    counted = prompts[0], prompts[4]
    rewards = letters(completions=completions)
    return [
        reward if prompt in counted else 1.0
        for prompt, reward in zip(prompts, rewards, strict=True)
    ]


def plainly(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PackingTrainer, "_packs", False)
    patch.setattr(PackingTrainer, "_shares", lambda self, model: False)


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


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_is_that_of_rows_spread_at_random(
    built: Builder, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    ours = last_gradients(built(**OBJECTIVES[name]))
    plainly(monkeypatch)
    assert_same_gradients(ours, last_gradients(built(**OBJECTIVES[name])))


def test_the_gradient_of_an_adapter_is_that_of_rows_spread_at_random(
    built: Builder, smoke: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = last_gradients(built(model=smoke.model))
    plainly(monkeypatch)
    assert_same_gradients(ours, last_gradients(built(model=smoke.model)))


def forward_shapes(trainer: PolicyGradientTrainer) -> list[tuple[int, ...]]:
    """Shapes that go through the policy to have gradients."""
    shapes: list[tuple[int, ...]] = []

    def note(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            shapes.append(tuple(kwargs["input_ids"].shape))

    trainer.model.register_forward_pre_hook(note, with_kwargs=True)
    trainer.train()
    return shapes


def test_a_prompt_is_computed_once_and_rows_without_advantage_not_at_all(
    built: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = forward_shapes(built())
    assert [rows for rows, _ in shapes] == [1, 4] * 2
    assert all(columns <= 17 for _, columns in shapes[1::2])
    plainly(monkeypatch)
    plain = forward_shapes(built())
    assert [rows for rows, _ in plain] == [4] * 4
    area, plain_area = (sum(rows * columns for rows, columns in s) for s in (shapes, plain))
    assert area < 0.3 * plain_area


def test_with_a_penalty_towards_the_reference_no_row_is_left_out(built: Builder) -> None:
    assert [rows for rows, _ in forward_shapes(built(beta=0.1))] == [1, 4] * 4


def test_a_batch_without_any_advantage_still_has_gradients_of_zero(built: Builder) -> None:
    trainer = reward_with(built(), lambda completions, **columns: [1.0] * len(completions))
    gradients = last_gradients(trainer)
    assert gradients
    assert not any(gradient.any() for gradient in gradients.values())


def batch(prompts: list[list[int]], completions: list[list[int]], advantages: list[float]) -> Any:
    """As TRL pads it, to two columns more than there are tokens."""
    left, right = (max(map(len, rows)) + 2 for rows in (prompts, completions))
    return {
        "prompt_ids": torch.tensor([[0] * (left - len(p)) + p for p in prompts]),
        "prompt_mask": torch.tensor([[0] * (left - len(p)) + [1] * len(p) for p in prompts]),
        "completion_ids": torch.tensor([c + [0] * (right - len(c)) for c in completions]),
        "completion_mask": torch.tensor(
            [[1] * len(c) + [0] * (right - len(c)) for c in completions]
        ),
        "advantages": torch.tensor(advantages),
        "importance_sampling_ratio": torch.tensor(advantages)[:, None],
        "num_items_in_batch": torch.tensor(7),
        "pixel_values": None,
    }


def test_packing_keeps_rows_whole_and_puts_those_without_advantage_first() -> None:
    prompts = [[1, 2, 3], [4], [5, 6], [1, 2, 3], [4], [5, 6]]
    completions = [[11], [12, 12], [13], [14, 14, 14], [15], [16]]
    whole = batch(prompts, completions, [0.0, 2.0, 3.0, 0.0, 0.0, 6.0])
    whole["row"] = torch.arange(6)
    shuffled = torch.tensor([5, 2, 0, 1, 4, 3])
    whole = {n: v[shuffled] if getattr(v, "ndim", 0) else v for n, v in whole.items()}
    halves = [
        {n: v[part] if getattr(v, "ndim", 0) else v for n, v in whole.items()}
        for part in (slice(0, 2), slice(2, 4), slice(4, 6))
    ]
    packed = arranged(halves, packed=True)
    assert [b["completion_ids"].tolist() for b in packed] == [
        [[11, 0, 0], [14, 14, 14]],
        [[15, 0], [12, 12]],
        [[13], [16]],
    ]
    assert [b["advantages"].tolist() for b in packed] == [[0.0, 0.0], [0.0, 2.0], [3.0, 6.0]]
    assert [b["row"].tolist() for b in packed] == [[0, 3], [4, 1], [2, 5]]
    unpacked = arranged(halves, packed=False)
    assert [b["row"].tolist() for b in unpacked] == [[0, 1], [2, 3], [4, 5]]
    assert {int(b["num_items_in_batch"]) for b in packed} == {7}


def test_trimming_leaves_a_column_where_every_completion_is_masked() -> None:
    masked = batch([[1, 2]], [[3]], [1.0])
    masked["completion_mask"] = torch.zeros_like(masked["completion_mask"])
    assert trim(masked)["completion_ids"].tolist() == [[3]]
