"""Policy loss from keywords, and the comparison of gradients."""

import dataclasses

import torch
from torch import Tensor, nn

from lib.objectives.logprobs import TokenScores
from lib.objectives.losses import LossInputs, Objective, PolicyLoss, policy_loss

INPUTS = {field.name for field in dataclasses.fields(LossInputs)}


def loss_of(log_probs: Tensor, advantages: Tensor, mask: Tensor, **settings) -> PolicyLoss:
    """Split `settings` between `LossInputs` and `Objective`, and compute the loss."""
    inputs = {name: settings.pop(name) for name in INPUTS & settings.keys()}
    entropy = settings.pop("entropy", torch.zeros_like(log_probs))
    scores = TokenScores(log_probs, entropy, settings.pop("teacher_kl", None))
    coefficient = settings.pop("entropy_coef", 0.0)
    return policy_loss(
        scores,
        LossInputs(advantages=advantages, loss_mask=mask, **inputs),
        Objective(**settings),
        entropy_coef=coefficient,
    )


def assert_gradients(
    ours: dict[str, Tensor], theirs: dict[str, Tensor], *, within: float, least: float = 1e-5
):
    """Assert equality up to a share of the largest, for single entries cancel down to rounding.

    Args:
        least: the largest gradient is above it, and so not itself a rounding.
    """
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    assert largest > least
    torch.testing.assert_close(ours, theirs, atol=within * largest, rtol=10 * within)


def gradients_of(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """Return the loss's gradients of the weights that it depends on."""
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
