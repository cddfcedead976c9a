"""Policy loss from keywords, for tests."""

import dataclasses
from typing import Any

from torch import Tensor

from lib.objectives.losses import LossInputs, Objective, PolicyLoss, policy_loss

INPUTS = {field.name for field in dataclasses.fields(LossInputs)}


def loss_of(log_probs: Tensor, advantages: Tensor, mask: Tensor, **settings: Any) -> PolicyLoss:
    """Split `settings` between `LossInputs` and `Objective`, and compute the loss."""
    inputs = {name: settings.pop(name) for name in INPUTS & settings.keys()}
    return policy_loss(
        LossInputs(log_probs=log_probs, advantages=advantages, mask=mask, **inputs),
        Objective(**settings),
    )
