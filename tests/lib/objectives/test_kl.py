"""KL estimators by enumeration: expectations over a vocabulary of 7 are exact sums, no draws."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lib.objectives.penalties import KLEstimator, kl_per_token
from tests.lib.objectives.tiny import seeded


@pytest.fixture
def theta():
    return torch.randn(7, generator=seeded(), dtype=torch.float64).requires_grad_()


@pytest.fixture
def reference():
    return torch.randn(7, generator=seeded(1), dtype=torch.float64).log_softmax(-1)


def expected_estimate(theta: Tensor, reference: Tensor, estimator: KLEstimator) -> Tensor:
    """Sum π(y)·k(y) over y, π(y) constant: the limit of an average over sampled tokens."""
    log_p = theta.log_softmax(-1)
    return (log_p.exp().detach() * kl_per_token(log_p, reference, estimator=estimator)).sum()


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    return (log_p.exp() * (log_p - log_q)).sum()


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(theta, reference, estimator):
    expected = kl(theta.log_softmax(-1), reference)
    torch.testing.assert_close(expected_estimate(theta, reference, estimator), expected)


def gradient(value: Tensor, theta: Tensor) -> Tensor:
    return torch.autograd.grad(value, theta, retain_graph=True)[0]


INTEGRALS = {
    "k1": lambda log_p, log_q: 0 * log_p.sum(),
    "k2": kl,
    "k3": lambda log_p, log_q: kl(log_q, log_p),
}
"""By estimator, the value with its expected gradient: a constant, KL, and the reverse KL."""


@pytest.mark.parametrize("estimator", INTEGRALS)
def test_k1_k2_k3_expect_the_gradient_of_0_kl_and_reverse_kl(theta, reference, estimator):
    actual = gradient(expected_estimate(theta, reference, estimator), theta)
    expected = gradient(INTEGRALS[estimator](theta.log_softmax(-1), reference), theta)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-7)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_weighted_by_the_ratio_it_is_kl_on_older_tokens_too(theta, reference, estimator):
    old = torch.linspace(-1, 1, 7, dtype=torch.float64).log_softmax(-1)
    log_p = theta.log_softmax(-1)
    weighted = (log_p - old).exp() * kl_per_token(log_p, reference, estimator=estimator)
    actual = (old.exp() * weighted).sum()
    expected = kl(log_p, reference)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradient(actual, theta), gradient(expected, theta))


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@given(policy=st.floats(-30, 0), reference=st.floats(-30, 0))
def test_k2_and_k3_are_never_negative(estimator, policy, reference):
    estimate = kl_per_token(torch.tensor(policy), torch.tensor(reference), estimator=estimator)
    assert estimate >= 0


def test_k3_near_zero_keeps_its_digits():
    # e^-d - 1 + d for d = 1e-3; computed as written, float32 would leave two digits of 5e-7
    estimate = kl_per_token(torch.tensor(1e-3), torch.tensor(0.0), estimator="k3")
    assert estimate.item() == pytest.approx(4.998e-7, rel=1e-3)
