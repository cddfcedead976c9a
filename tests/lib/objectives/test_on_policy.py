"""With a ratio of 1, clips change nothing, and losses differ by their averages only."""

from typing import Any

import pytest
import torch

from lib.objectives import LOSSES
from tests.lib.objectives.losses import loss_of


def gradient(*, away: float, **settings: Any) -> torch.Tensor:
    """Return the loss's gradient on a tiny batch, its old log-probs `away` from the policy's."""
    torch.manual_seed(0)
    log_probs, noise = torch.randn(6, 5).requires_grad_(), torch.randn(6, 5)
    loss_of(
        log_probs,
        torch.linspace(-1, 1, 6),
        torch.arange(5) < torch.tensor([[5], [2], [4], [1], [5], [3]]),
        old_log_probs=(log_probs - away * noise).detach(),
        max_completion_length=5,
        num_tokens=20,
        **{"loss": "dapo", "clip_low": 0.2, "clip_high": 0.2, **settings},
    ).loss.backward()
    return log_probs.grad


@pytest.mark.parametrize(
    "changes",
    [{"clip_low": 0.01}, {"clip_high": 0.5}, {"delta": 1.3}, {"ratio_level": "sequence"}],
    ids=str,
)
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_on_policy_a_clip_changes_no_gradient(changes, loss_type):
    alike, apart = (
        [gradient(away=away, loss=loss_type, **each) for each in ({}, changes)]
        for away in (0.0, 0.5)
    )
    torch.testing.assert_close(*alike)
    assert not torch.allclose(*apart)


@pytest.mark.parametrize("losses", [("dapo", "cispo"), ("grpo", "reinforce"), ("dapo", "grpo")])
def test_on_policy_losses_that_average_alike_are_one(losses):
    alike, apart = ([gradient(away=away, loss=loss) for loss in losses] for away in (0.0, 0.5))
    one, two = (LOSSES[loss].average for loss in losses)
    assert torch.equal(*alike) == (one == two)
    assert not torch.allclose(*apart)
