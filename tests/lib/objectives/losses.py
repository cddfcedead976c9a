"""Policy loss from keywords, for tests."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from lib.objectives.logprobs import TokenScores
from lib.objectives.losses import LossInputs, Objective, PolicyLoss, policy_loss

INPUTS = {field.name for field in dataclasses.fields(LossInputs)}


def loss_of(log_probs: Tensor, advantages: Tensor, mask: Tensor, **settings: Any) -> PolicyLoss:
    """Split `settings` between `LossInputs` and `Objective`, and compute the loss."""
    inputs = {name: settings.pop(name) for name in INPUTS & settings.keys()}
    scores = TokenScores(log_probs, settings.pop("entropy", torch.zeros_like(log_probs)))
    coefficient = settings.pop("entropy_coef", 0.0)
    return policy_loss(
        scores,
        LossInputs(advantages=advantages, loss_mask=mask, **inputs),
        Objective(**settings),
        entropy_coef=coefficient,
    )
