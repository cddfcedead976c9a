import pytest
import torch
from torch import Tensor

from lib.course import grpo_microbatch_train_step, sft_microbatch_train_step

B, T = 4, 5


@pytest.fixture
def log_probs() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (-3 * torch.rand(B, T, generator=generator, dtype=torch.float64)).requires_grad_()


@pytest.fixture
def mask() -> Tensor:
    return torch.arange(T) < torch.tensor([[5], [1], [3], [2]])


def test_sft_gradient_is_the_hand_formula(log_probs: Tensor, mask: Tensor) -> None:
    loss, metadata = sft_microbatch_train_step(log_probs, mask, 2, normalize_constant=42.0)
    torch.testing.assert_close(log_probs.grad, -mask.double() / (42 * B * 2))
    torch.testing.assert_close(loss, -log_probs.detach()[mask].sum() / (42 * B * 2))
    torch.testing.assert_close(metadata["token_loss"], -log_probs.detach()[mask].mean())
    assert metadata["num_tokens"] == 11
    assert not loss.requires_grad


def test_sft_micro_batches_give_the_full_batchs_gradient(log_probs: Tensor, mask: Tensor) -> None:
    sft_microbatch_train_step(log_probs, mask, 1)
    assert log_probs.grad is not None
    whole = log_probs.grad.clone()
    log_probs.grad = None
    losses = [
        sft_microbatch_train_step(log_probs[r], mask[r], 4)[0] for r in torch.arange(B)[:, None]
    ]
    torch.testing.assert_close(log_probs.grad, whole)
    torch.testing.assert_close(sum(losses), -(log_probs * mask).sum().detach() / B)


@pytest.mark.parametrize("loss_type", ["no_baseline", "reinforce_with_baseline"])
def test_reinforce_step_gradient_is_the_hand_formula(
    log_probs: Tensor, mask: Tensor, loss_type: str
) -> None:
    scores = {
        "no_baseline": torch.rand(B, 1).double(),
        "reinforce_with_baseline": torch.randn(B, 1),
    }
    grpo_microbatch_train_step(
        log_probs, mask, 2, loss_type, scores["no_baseline"], scores["reinforce_with_baseline"]
    )  # type: ignore[arg-type]
    lengths = mask.sum(-1, keepdim=True)
    expected = -scores[loss_type].double() * mask / (lengths * B * 2)
    torch.testing.assert_close(log_probs.grad, expected)


def test_grpo_micro_batches_give_the_full_batchs_gradient(log_probs: Tensor, mask: Tensor) -> None:
    advantages = torch.tensor([[1.0], [-1.0], [2.0], [-2.0]], dtype=torch.float64)
    old = log_probs.detach() + torch.linspace(-0.5, 0.5, B * T).view(B, T)

    def step(rows: slice, num_steps: int) -> Tensor:
        return grpo_microbatch_train_step(
            log_probs[rows], mask[rows], num_steps, "grpo_clip",
            advantages=advantages[rows], old_log_probs=old[rows], cliprange=0.2,
        )[0]  # fmt: skip

    full = step(slice(0, 4), 1)
    assert log_probs.grad is not None
    whole = log_probs.grad.clone()
    log_probs.grad = None
    parts = step(slice(0, 2), 2) + step(slice(2, 4), 2)
    torch.testing.assert_close(log_probs.grad, whole)
    torch.testing.assert_close(parts, full)


def test_garbage_in_the_padding_leaves_the_gradient_zero_there(mask: Tensor) -> None:
    log_probs = torch.where(mask, -1.0, torch.nan).requires_grad_()
    old = torch.where(mask, -1.5, -torch.inf)
    loss, metadata = grpo_microbatch_train_step(
        log_probs, mask, 1, "grpo_clip", advantages=torch.ones(B, 1), old_log_probs=old,
        cliprange=0.2,
    )  # fmt: skip
    assert loss.item() == pytest.approx(-1.2)
    assert log_probs.grad is not None
    assert (log_probs.grad[~mask] == 0).all()
    assert metadata["clip_fraction"] == 1


def test_a_completion_without_tokens_adds_nothing(log_probs: Tensor, mask: Tensor) -> None:
    empty = mask.clone()
    empty[0] = False
    loss, _ = grpo_microbatch_train_step(log_probs, empty, 1, "no_baseline", torch.ones(B, 1))
    rest = [-log_probs.detach()[i, mask[i]].mean() for i in (1, 2, 3)]
    torch.testing.assert_close(loss, sum(rest) / B)
