"""KL estimators by enumeration: expectations over a vocabulary of 7 are exact sums, no draws."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lib.objectives.losses import kl_per_token
from tests.lib.objectives.tiny import seeded


@pytest.fixture
def theta():
    return torch.randn(7, generator=seeded(), dtype=torch.float64).requires_grad_()


@pytest.fixture
def reference():
    return torch.randn(7, generator=seeded(1), dtype=torch.float64).log_softmax(-1)


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    return (log_p.exp() * (log_p - log_q)).sum()


def gradient(value: Tensor, theta: Tensor) -> Tensor:
    return torch.autograd.grad(value, theta, retain_graph=True)[0]


def test_k3_is_unbiased_and_its_gradient_is_of_reverse_kl(theta, reference):
    """Σ π(y)·k3(y) over y, π(y) constant, is the limit of an average over sampled tokens."""
    log_p = theta.log_softmax(-1)
    actual = (log_p.exp().detach() * kl_per_token(log_p, reference)).sum()
    torch.testing.assert_close(actual, kl(log_p, reference))
    torch.testing.assert_close(
        gradient(actual, theta), gradient(kl(reference, log_p), theta), atol=1e-12, rtol=1e-7
    )


def test_weighted_by_the_ratio_it_is_kl_on_older_tokens_too(theta, reference):
    old = torch.linspace(-1, 1, 7, dtype=torch.float64).log_softmax(-1)
    log_p = theta.log_softmax(-1)
    actual = (old.exp() * (log_p - old).exp() * kl_per_token(log_p, reference)).sum()
    expected = kl(log_p, reference)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradient(actual, theta), gradient(expected, theta))


@given(policy=st.floats(-30, 0), reference=st.floats(-30, 0))
def test_k3_is_never_negative(policy, reference):
    assert kl_per_token(torch.tensor(policy), torch.tensor(reference)) >= 0


def test_k3_near_zero_keeps_its_digits():
    # e^-d - 1 + d for d = 1e-3; computed as written, float32 would leave two digits of 5e-7
    estimate = kl_per_token(torch.tensor(1e-3), torch.tensor(0.0))
    assert estimate.item() == pytest.approx(4.998e-7, rel=1e-3)
