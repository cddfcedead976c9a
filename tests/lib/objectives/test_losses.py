import itertools
import math
from functools import partial
from statistics import fmean

import pytest
import torch
from torch.nn import functional as F

from examples.cs336 import compute_naive_policy_gradient_loss, compute_policy_gradient_loss
from lib.objectives import LOSSES
from lib.objectives.losses import average_token_losses
from lib.objectives.sampler import compare_with_sampler, effective_sample_share
from tests.lib.objectives.losses import loss_of
from tests.lib.objectives.tiny import seeded

B, T = 4, 6


@pytest.fixture
def policy():
    return (-3 * torch.rand(B, T, generator=seeded(), dtype=torch.float64)).requires_grad_()


@pytest.fixture
def old(policy):
    return policy.detach() + 0.4 * torch.randn(B, T, generator=seeded(1), dtype=torch.float64)


@pytest.fixture
def advantages():
    return torch.tensor([1.5, -0.5, -1.5, 0.5], dtype=torch.float64)


@pytest.fixture
def mask():
    return torch.arange(T) < torch.tensor([[6], [2], [4], [1]])


def test_at_ratio_one_the_clipped_gradient_is_reinforces(policy, advantages, mask):
    reinforce, clipped = (
        torch.autograd.grad(loss_of(policy, advantages, mask, loss=name).loss, policy)
        for name in ("reinforce", "grpo")
    )
    torch.testing.assert_close(reinforce, clipped)


@pytest.mark.parametrize(
    ("loss_type", "num_tokens", "expected"),
    [
        ("reinforce", None, ((1 + 2) / 2 + 5 / 1 + 0) / 3),
        ("grpo", None, ((1 + 2) / 2 + 5 / 1 + 0) / 3),
        ("bnpo", 4, (1 + 2 + 5) / 3),
        ("dapo", None, (1 + 2 + 5) / 3),
        ("dapo", 4, (1 + 2 + 5) / 4),
        ("dapo", torch.tensor([2, 10, 1]), (1 + 2) / 2 + 5 / 10 + 0),
        ("dr_grpo", None, (1 + 2 + 5) / (3 * 10)),
    ],
)
def test_aggregation_by_hand(loss_type, num_tokens, expected):
    losses = torch.tensor([[1.0, 2.0], [5.0, 99.0], [99.0, 99.0]])
    mask = torch.tensor([[1, 1], [1, 0], [0, 0]])
    average = LOSSES[loss_type].average
    loss = average_token_losses(
        losses, mask, average=average, max_completion_length=10, num_tokens=num_tokens
    )
    assert loss.item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("loss_type", "steps"), [("reinforce", 2), ("grpo", 2), ("dr_grpo", 2), ("dapo", 1)]
)
def test_micro_batches_give_the_full_batchs_loss_and_gradient(
    loss_type, steps, policy, old, advantages, mask
):
    """With an entropy bonus; those of `dapo` add up, the others are averaged over the steps."""
    entropy = policy.detach().abs().requires_grad_()

    def run(rows, steps):
        loss = loss_of(
            policy[rows], advantages[rows], mask[rows], loss=loss_type, old_log_probs=old[rows],
            entropy=entropy[rows], entropy_coef=0.7, max_completion_length=T,
            num_tokens=mask.sum().item() / steps,
        ).loss  # fmt: skip
        return loss, *torch.autograd.grad(loss, (policy, entropy))

    for whole, *halves in zip(
        run(slice(0, 4), 1), run(slice(0, 2), steps), run(slice(2, 4), steps), strict=True
    ):
        torch.testing.assert_close(sum(halves) / steps, whole)
    # The bonus is subtracted: 0.7 times the mean entropy of the tokens.
    _, _, slope = run(slice(0, 4), 1)
    torch.testing.assert_close(slope, -0.7 * mask.double() / mask.sum())


@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSSES)
def test_padding_changes_nothing_and_gets_no_gradient(
    loss_type, ratio_level, policy, old, advantages, mask
):
    def run(log_probs, olds, kept):
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
    padded_loss, padded_gradient = run(padded, torch.cat([old, garbage], 1), F.pad(mask, (0, 3)))
    torch.testing.assert_close(padded_loss, loss)
    torch.testing.assert_close(padded_gradient, F.pad(gradient, (0, 3)))
    assert (gradient[~mask] == 0).all()


@pytest.mark.parametrize("loss_type", LOSSES)
def test_a_batch_without_tokens_is_a_differentiable_zero(loss_type, policy, old, advantages):
    result = loss_of(
        policy, advantages, torch.zeros(B, T), loss=loss_type, old_log_probs=old,
        max_completion_length=T,
    )  # fmt: skip
    (gradient,) = torch.autograd.grad(result.loss, policy)
    for zero in (result.loss, result.kl, gradient):
        assert not zero.any()


def test_clipped_tokens_are_those_without_gradient(policy, old, advantages, mask):
    result = loss_of(policy, advantages, mask, loss="bnpo", old_log_probs=old)
    gradient = torch.autograd.grad(result.loss, policy)[0]
    torch.testing.assert_close(result.clipped[mask], gradient[mask] == 0)
    assert 0 < result.clipped[mask].double().mean() < 1


def test_dppo_masks_tokens_whose_probability_moved_too_far(policy, old, advantages, mask):
    """arXiv:2602.04879 with binary total variation, one token at a time."""
    for low, high in itertools.product((0.02, 0.1, 0.3), repeat=2):
        result = loss_of(
            policy, advantages, mask, loss="dppo", old_log_probs=old, clip_low=low, clip_high=high
        )
        total, num_masked = 0.0, 0
        for row, column in mask.nonzero().tolist():
            new, before = policy[row, column].exp(), old[row, column].exp()
            credit = advantages[row]
            moved = (new - before).item()
            if (credit > 0 and moved > high) or (credit < 0 and moved < -low):
                num_masked += 1
            else:
                total = total - credit * new / before
        expected = total / mask.sum()
        torch.testing.assert_close(result.loss, expected)
        assert int(result.clipped[mask].sum()) == num_masked
        ours, theirs = (torch.autograd.grad(each, policy)[0] for each in (result.loss, expected))
        torch.testing.assert_close(ours, theirs)


def test_a_plugins_loss_may_read_the_samplers_log_probs(policy, old, advantages, mask):
    def weighted(log_probs, old, advantages, mask, sampler):
        return -advantages * log_probs * (old - sampler).exp()

    loss = loss_of(
        policy, advantages, mask, loss=weighted, old_log_probs=old, sampler_log_probs=old - 1
    ).loss
    plain = loss_of(policy, advantages, mask, loss="dapo").loss
    reinforce = -(advantages[:, None] * policy)[mask].sum() / mask.sum()
    torch.testing.assert_close(loss, reinforce * math.e)
    assert plain != loss


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


@pytest.mark.parametrize(
    ("weights", "share"),
    [([0.3] * 8, 1), ([0.0] * 7 + [5.0], 1 / 8), ([1.0, 3.0], 16 / 20), ([0.0, 0.0], 0)],
)
def test_the_effective_sample_by_hand(weights, share):
    mean, square = fmean(weights), fmean(weight**2 for weight in weights)
    assert effective_sample_share(mean, square) == pytest.approx(share)


SCORES = torch.zeros(B, B)


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (partial(compute_naive_policy_gradient_loss, torch.ones(B), SCORES), r"\[4, 1\]"),
        (partial(compute_policy_gradient_loss, SCORES, "no_baseline"), "raw_rewards"),
        (partial(compute_policy_gradient_loss, SCORES, "grpo_clip"), "advantages"),
        (partial(loss_of, SCORES, SCORES[0], SCORES, loss="dr_grpo"), "max_completion_length"),
        (partial(loss_of, SCORES, SCORES[0], SCORES, loss="grpo", kl_coef=0.1), "reference_log"),
    ],
    ids=["shape", "rewards", "advantages", "length", "reference"],
)
def test_wrong_shapes_and_missing_arguments_are_refused(call, fault):
    with pytest.raises(ValueError, match=fault):
        call()
