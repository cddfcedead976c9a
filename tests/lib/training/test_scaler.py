"""`mixed_precision: fp16` scales the loss; gradients are float64's, to float16's digits.

accelerate scales on GPUs only; here its scaler and its autocast are put in place on a CPU.
"""

import math
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from lib.core.errors import UserError
from lib.params.model import Model
from lib.training import grpo
from lib.training.grpo.batching import MicroBatch
from lib.training.phase.warning_signs import OVERFLOWS, Limits, WarningSigns
from tests.lib.objectives.losses import gradients_of
from tests.lib.training.steps import train_steps


@pytest.fixture
def scaled(built, monkeypatch):
    """Build a trainer with a GPU's autocast and scaler on a CPU."""
    plain = grpo.shared_arguments

    def as_on_a_gpu(*args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(torch.accelerator, "is_available", lambda: True)
            return {**plain(*args, **kwargs), "use_cpu": True}

    def builder(scale, **changes):
        monkeypatch.setattr(grpo, "shared_arguments", as_on_a_gpu)
        trainer = built(model={"mixed_precision": "fp16"}, **changes)
        assert trainer.accelerator.mixed_precision == "fp16"
        trainer.accelerator.native_amp = True
        # One skipped step is enough: the scale falls to a part in 2^40.
        trainer.accelerator.scaler = torch.amp.GradScaler(
            "cpu", init_scale=scale, backoff_factor=2.0**-40
        )
        return trainer

    return builder


def gradients_in_float64(model, batch: MicroBatch) -> dict[str, Tensor]:
    """Compute the first update's gradients, every ratio 1: the loss is -sum of A log p.

    Each row is computed by itself, without padding.
    """
    model = model.double().requires_grad_(True)
    loss = torch.zeros((), dtype=torch.float64)
    for row, advantage in enumerate(batch.advantages.double()):
        prompt = batch.prompt_ids[row][batch.prompt_mask[row].bool()]
        completion = batch.completion_ids[row][batch.completion_mask[row].bool()]
        logits = model(input_ids=torch.cat([prompt, completion])[None]).logits[0]
        log_probs = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        loss -= (advantage * log_probs.gather(-1, completion[:, None])).sum() / batch.num_tokens
    return gradients_of(model, loss)


def test_scaled_gradients_are_those_of_float64(scaled, logits):
    trainer = scaled(2.0**10, max_steps=1, learning_rate=1e-12)
    steps = train_steps(trainer)
    expected = gradients_in_float64(trainer.model, steps.batches[0])
    assert steps.gradients[0].keys() == expected.keys()
    ours, theirs = (
        torch.cat([gradients[name].double().flatten() for name in expected])
        for gradients in (steps.gradients[0], expected)
    )
    error = float((ours - theirs).norm() / theirs.norm())
    # float16 has 11 bits; float32's error here would be 1e-6.
    assert 1e-5 < error < 5e-3


def test_a_step_that_overflows_counts_as_none(scaled):
    trainer = scaled(2.0**40, max_steps=3, logging_steps=1, lr_schedule="linear", warmup_ratio=0.0)
    steps = train_steps(trainer)
    points = steps.points
    assert all(map(torch.equal, steps.weights[0].values(), steps.weights[1].values()))
    assert not all(map(torch.equal, steps.weights[1].values(), steps.weights[2].values()))
    (taken,) = {int(state["step"]) for state in trainer.optimizer.state.values()}
    assert taken == 2
    assert points[0]["learning_rate"] == points[1]["learning_rate"] > points[2]["learning_rate"]
    assert ["grad_norm" in point for point in points] == [False, True, True]


def test_overflows_are_a_fault_once_the_scale_is_spent(smoke):
    limits = Limits.from_reward(smoke.reward, max_new_tokens=16, dtype="float16")

    def kinds(overflows):
        signs = WarningSigns("grpo", limits)
        for step in range(20):
            norm = math.inf if step < overflows else 1.0
            signs.observe({"step": step, "loss": 0.0, "grad_norm": norm})
        return [sign["kind"] for sign in signs.signs]

    assert kinds(OVERFLOWS["float16"] - 1) == []
    assert kinds(OVERFLOWS["float16"]) == ["gradient_explodes"]


def test_without_a_gpu_it_is_refused(built):
    with pytest.raises(UserError, match="mixed_precision=fp16"):
        built(model={"mixed_precision": "fp16"})


@pytest.mark.parametrize(
    ("dtype", "precision", "rank", "allowed"),
    [
        ("float32", "fp16", 0, True),
        ("float16", "fp16", 8, True),
        ("float16", "fp16", 0, False),
        ("bfloat16", "fp16", 8, False),
        ("float16", "bf16", 8, False),
    ],
)
def test_the_scaler_needs_gradients_in_float32(dtype, precision, rank, allowed, full):
    values = full.model_dump() | {"dtype": dtype, "mixed_precision": precision}
    values["lora"] = {**values["lora"], "rank": rank}
    refused = pytest.raises(ValueError, match="fp16 needs dtype")
    with nullcontext() if allowed else refused:
        assert Model.model_validate(values).inference_dtype == "float16"
