"""On-policy distillation by enumeration: two tokens of a vocabulary of five, 25 completions."""

import itertools

import pytest
import torch

from tests.lib.objectives.losses import loss_of
from tests.lib.objectives.tiny import seeded

V, T = 5, 2
COMPLETIONS = torch.tensor([*itertools.product(range(V), repeat=T)])
MASK = torch.ones(V * V, T)


@pytest.fixture
def policy():
    """Logits of the first token, and of the second after each first one: [1 + V, V]."""
    return torch.randn(1 + V, V, generator=seeded(), dtype=torch.float64).requires_grad_()


@pytest.fixture
def teacher():
    return torch.randn(1 + V, V, generator=seeded(1), dtype=torch.float64).log_softmax(-1)


def of_completions(log_p):
    """Return the log-probs [25, T] of each completion's tokens from those of all states."""
    first, second = COMPLETIONS.T
    return torch.stack([log_p[0, first], log_p[1 + first, second]], 1)


@pytest.mark.parametrize("rewarded", [False, True])
@pytest.mark.parametrize("loss", ["reinforce", "grpo", "dapo", "cispo"])
def test_the_gradient_is_that_of_reward_and_reverse_kl(policy, teacher, loss, rewarded):
    """The KL of each state's distribution, with the states' own probabilities held fixed."""
    rewards = torch.arange(25, dtype=torch.float64) % 3 * rewarded
    log_p = policy.log_softmax(-1)
    log_probs = of_completions(log_p)
    chances = log_probs.sum(-1).exp()
    # The mean over 25 equally weighted rows becomes the expectation.
    weights = 25 * chances.detach()[:, None]
    actual = loss_of(
        log_probs, rewards, MASK, loss=loss, correction=weights,
        teacher_log_probs=of_completions(teacher), teacher_coef=0.7,
    ).loss  # fmt: skip
    kl = (log_p.exp() * (log_p - teacher)).sum(-1)
    states = torch.cat([torch.ones(1), log_p[0].exp().detach()])
    expected = (0.7 * (states * kl).sum() - (chances * rewards).sum()) / T
    ours, wanted = (torch.autograd.grad(each, policy, retain_graph=True)[0]
                    for each in (actual, expected))  # fmt: skip
    assert wanted.abs().max() > 1e-3
    torch.testing.assert_close(ours, wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize("loss", ["reinforce", "grpo", "dapo", "cispo"])
def test_a_teacher_equal_to_the_policy_gives_exact_zeros(policy, loss):
    log_probs = of_completions(policy.log_softmax(-1))
    result = loss_of(
        log_probs, torch.zeros(25), MASK, loss=loss,
        teacher_log_probs=log_probs.detach(), teacher_coef=0.7,
    )  # fmt: skip
    (gradient,) = torch.autograd.grad(result.loss, policy)
    assert not result.loss.any() and not gradient.any()
