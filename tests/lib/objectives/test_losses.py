import math

import pytest
import torch
from torch import Tensor

from lib.course import compute_naive_policy_gradient_loss, compute_policy_gradient_loss
from lib.objectives import LOSSES
from lib.objectives.losses import average_token_losses
from lib.objectives.sampler import compare_with_sampler, effective_sample_share
from tests.lib.objectives.losses import loss_of

B, T = 4, 6


@pytest.fixture
def policy():
    generator = torch.Generator().manual_seed(0)
    return (-3 * torch.rand(B, T, generator=generator, dtype=torch.float64)).requires_grad_()


@pytest.fixture
def old(policy):
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(B, T, generator=generator, dtype=torch.float64)
    return policy.detach() + 0.4 * noise


@pytest.fixture
def advantages():
    return torch.tensor([1.5, -0.5, -1.5, 0.5], dtype=torch.float64)


@pytest.fixture
def mask():
    lengths = torch.tensor([6, 2, 4, 1])
    return torch.arange(T) < lengths.unsqueeze(1)


def test_at_ratio_one_the_clipped_gradient_is_reinforces(policy, advantages, mask):
    gradients = [
        torch.autograd.grad(loss_of(policy, advantages, mask, loss=t).loss, policy)[0]
        for t in ("reinforce", "grpo")
    ]
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        ("reinforce", ((1 + 2) / 2 + 5 / 1 + 0) / 3),
        ("grpo", ((1 + 2) / 2 + 5 / 1 + 0) / 3),
        ("bnpo", (1 + 2 + 5) / 3),
        ("dapo", (1 + 2 + 5) / 3),
        ("dr_grpo", (1 + 2 + 5) / (3 * 10)),
    ],
)
def test_aggregation_by_hand(loss_type, expected):
    losses = torch.tensor([[1.0, 2.0], [5.0, 99.0], [99.0, 99.0]])
    mask = torch.tensor([[1, 1], [1, 0], [0, 0]])
    loss = average_token_losses(
        losses, mask, average=LOSSES[loss_type].average, max_completion_length=10
    )
    assert loss.item() == pytest.approx(expected)


@pytest.mark.parametrize("loss_type", ["reinforce", "grpo", "dr_grpo", "dapo"])
def test_micro_batches_give_the_full_batchs_gradient(loss_type, policy, old, advantages, mask):
    def gradient(rows: slice) -> Tensor:
        loss = loss_of(
            policy[rows],
            advantages[rows],
            mask[rows],
            loss=loss_type,
            old_log_probs=old[rows],
            max_completion_length=T,
            num_tokens=int(mask.sum()),
        ).loss
        return torch.autograd.grad(loss, policy)[0]

    steps = 1 if loss_type == "dapo" else 2
    halves = (gradient(slice(0, 2)) + gradient(slice(2, 4))) / steps
    torch.testing.assert_close(halves, gradient(slice(0, 4)))


@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSSES)
def test_padding_changes_nothing_and_gets_no_gradient(
    loss_type,
    ratio_level,
    policy,
    old,
    advantages,
    mask,
):
    def run(log_probs: Tensor, olds: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        result = loss_of(
            log_probs, advantages, kept, loss=loss_type, old_log_probs=olds,
            ratio_level=ratio_level, reference_log_probs=olds, kl_coef=0.1,
            max_completion_length=T,
        )  # fmt: skip
        return result.loss, torch.autograd.grad(result.loss, log_probs)[0]

    loss, gradient = run(policy, old, mask)
    garbage = torch.tensor([math.nan, -math.inf, math.inf], dtype=torch.float64).expand(B, 3)
    dirty = torch.where(mask, policy.detach(), math.nan)
    padded = torch.cat([dirty, garbage], 1).requires_grad_()
    padded_loss, padded_gradient = run(
        padded, torch.cat([old, garbage], 1), torch.cat([mask, torch.zeros(B, 3).bool()], 1)
    )
    torch.testing.assert_close(padded_loss, loss)
    torch.testing.assert_close(padded_gradient[:, :T], gradient)
    assert (padded_gradient[:, T:] == 0).all()
    assert (gradient[~mask] == 0).all()


@pytest.mark.parametrize("loss_type", LOSSES)
def test_a_batch_without_tokens_is_a_differentiable_zero(loss_type, policy, old, advantages):
    result = loss_of(
        policy, advantages, torch.zeros(B, T), loss=loss_type, old_log_probs=old,
        max_completion_length=T,
    )  # fmt: skip
    result.loss.backward()
    assert policy.grad is not None
    assert result.loss == 0
    assert not result.kl.any()
    assert (policy.grad == 0).all()


def test_clipped_tokens_are_those_without_gradient(policy, old, advantages, mask):
    result = loss_of(policy, advantages, mask, loss="bnpo", old_log_probs=old)
    gradient = torch.autograd.grad(result.loss, policy)[0]
    torch.testing.assert_close(result.clipped[mask], gradient[mask] == 0)
    assert 0 < result.clipped[mask].double().mean() < 1


def test_the_samplers_correction_leaves_the_penalty(policy, old, advantages, mask):
    sampler = policy.detach() + torch.linspace(-1.5, 1.5, B, dtype=policy.dtype)[:, None]
    correction = compare_with_sampler(policy, sampler, mask).weights
    ratio = ((policy.detach() - sampler) * mask).sum(-1).exp()
    assert (ratio > 3).any() and (ratio < 3).any()
    torch.testing.assert_close(correction[:, 0], torch.where(ratio > 3, 0, ratio))
    assert not correction.requires_grad
    knobs = {"loss": "bnpo", "old_log_probs": old, "reference_log_probs": old}
    plain = loss_of(policy, advantages * correction[:, 0], mask, kl_coef=0.5, **knobs)
    corrected = loss_of(policy, advantages, mask, kl_coef=0.5, correction=correction, **knobs)
    torch.testing.assert_close(corrected.loss, plain.loss)


def test_the_effective_sample_by_hand():
    def share(weights: list[float]) -> float:
        values = torch.tensor(weights)
        return effective_sample_share(values.mean().item(), values.square().mean().item())

    assert share([0.3] * 8) == pytest.approx(1)
    assert share([0.0] * 7 + [5.0]) == pytest.approx(1 / 8)
    assert share([1.0, 3.0]) == pytest.approx(16 / 20)
    assert share([0.0, 0.0]) == 0


def test_micro_batches_give_the_full_batchs_entropy_bonus(policy, advantages, mask):
    entropy = policy.detach().abs().requires_grad_()
    knobs = {"loss": "grpo", "entropy_coef": 0.7}
    whole = loss_of(policy, advantages, mask, entropy=entropy, **knobs).loss
    plain = loss_of(policy, advantages, mask, loss="grpo").loss
    torch.testing.assert_close(whole, plain - 0.7 * entropy[mask].mean())
    halves = [
        loss_of(
            policy[rows], advantages[rows], mask[rows], entropy=entropy[rows],
            num_tokens=mask.sum().item() / 2, **knobs,
        ).loss
        for rows in (slice(0, 2), slice(2, 4))
    ]  # fmt: skip
    torch.testing.assert_close(sum(halves) / 2, whole)


def test_wrong_shapes_and_missing_arguments_are_refused(policy):
    square = policy[:, :B]
    with pytest.raises(ValueError, match=r"\[4, 1\]"):
        compute_naive_policy_gradient_loss(torch.ones(B), square)
    for loss_type, absent in (("no_baseline", "raw_rewards"), ("grpo_clip", "advantages")):
        with pytest.raises(ValueError, match=absent):
            compute_policy_gradient_loss(policy, loss_type)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"loss": "dr_grpo"}, "max_completion_length"),
        ({"loss": "grpo", "kl_coef": 0.1}, "reference_log_probs"),
    ],
)
def test_wrong_arguments_are_refused(policy, advantages, mask, arguments, match):
    with pytest.raises(ValueError, match=match):
        loss_of(policy, advantages, mask, **arguments)  # type: ignore[arg-type]
