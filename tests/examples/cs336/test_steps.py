import pytest
import torch

from examples.cs336 import grpo_microbatch_train_step, sft_microbatch_train_step
from tests.lib.objectives.tiny import seeded

B, T = 4, 5


@pytest.fixture
def log_probs():
    return (-3 * torch.rand(B, T, generator=seeded(), dtype=torch.float64)).requires_grad_()


@pytest.fixture
def mask():
    return torch.arange(T) < torch.tensor([[5], [1], [3], [2]])


def test_sft_gradient_is_the_hand_formula(log_probs, mask):
    for call in (1, 2):  # gradients add up
        loss, metadata = sft_microbatch_train_step(log_probs, mask, 2, normalize_constant=42.0)
        torch.testing.assert_close(log_probs.grad, -call * mask.double() / (42 * B * 2))
    torch.testing.assert_close(loss, -log_probs.detach()[mask].sum() / (42 * B * 2))
    torch.testing.assert_close(metadata["token_loss"], -log_probs.detach()[mask].mean())
    assert metadata["num_tokens"] == 11
    assert not loss.requires_grad


def test_garbage_in_the_padding_leaves_the_gradient_zero_there(mask):
    log_probs = torch.where(mask, -1.0, torch.nan).requires_grad_()
    old = torch.where(mask, -1.5, -torch.inf)
    loss, metadata = grpo_microbatch_train_step(
        log_probs, mask, 1, "grpo_clip", advantages=torch.ones(B, 1), old_log_probs=old,
        cliprange=0.2,
    )  # fmt: skip
    assert loss.item() == pytest.approx(-1.2)
    assert (log_probs.grad[~mask] == 0).all()
    assert metadata["clip_fraction"] == 1
