"""On-policy distillation by enumeration: two tokens of a vocabulary of five, 25 completions."""

import functools
import itertools

import pytest
import torch

from lib.engines.base import Sampling
from lib.engines.decoding import truncate
from lib.objectives.logprobs import TeacherStates, fused_scores
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


def enumerated(logits, teacher, sampling, k):
    """Return the KL of each row's five tokens, one by one, from whole logits."""
    log_p, log_q = logits / sampling.temperature, teacher / sampling.temperature
    cut_p, cut_q = (truncate(each.detach().clone(), sampling) for each in (log_p, log_q))
    log_q = log_q - cut_q.logsumexp(-1, keepdim=True)
    rows = []
    for z, cut, q in zip(log_p, cut_p, log_q, strict=True):
        kept = [token for token in range(V) if cut[token] > -torch.inf]
        own = dict(zip(kept, z[kept].log_softmax(-1), strict=True))
        likeliest = set(q.topk(k).indices.tolist()) if k else set(range(V))
        single = [(own[token].exp(), q[token].exp()) for token in kept if token in likeliest]
        rest = [(own[token].exp(), q[token].exp()) for token in kept if token not in likeliest]
        joined = [tuple(map(sum, zip(*rest, strict=True)))] if rest else []
        rows.append(sum(p * (p / q).log() for p, q in [*single, *joined]))
    return torch.stack(rows)


@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize(
    "decoding",
    [{}, {"temperature": 0.7}, {"top_p": 0.8}, {"temperature": 1.3, "top_k": 4}],
    ids=str,
)
def test_the_full_kl_is_that_of_enumerated_tokens(decoding, k):
    """Seven rows in chunks of two; of the mean over six of them, the seventh is masked."""
    draw = functools.partial(torch.randn, generator=seeded(), dtype=torch.float64)
    settings = {"temperature": 1.0, **decoding}
    sampling = Sampling(num_completions=1, max_new_tokens=1, **settings)
    hidden, weight, bias = (draw(*size).requires_grad_() for size in ((7, 3), (V, 3), (V,)))
    theirs, their_weight, their_bias = draw(7, 4), draw(V, 4), draw(V)
    scores = fused_scores(
        hidden, weight, torch.arange(7) % V, bias=bias, temperature=sampling.temperature,
        truncate=functools.partial(truncate, sampling=sampling), chunk_numel=2 * V,
        teacher=TeacherStates(hidden=theirs, weight=their_weight, bias=their_bias, top_k=k),
    )  # fmt: skip
    mask = (torch.arange(7) < 6)[:, None]
    ours = loss_of(
        scores.log_probs[:, None], torch.zeros(7), mask, loss="dapo",
        teacher_kl=scores.teacher_kl[:, None], teacher_coef=0.7,
    ).loss  # fmt: skip
    logits = hidden @ weight.T + bias
    wanted = 0.7 * enumerated(logits, theirs @ their_weight.T + their_bias, sampling, k)[:6].mean()
    torch.testing.assert_close(ours, wanted, atol=1e-9, rtol=0)
    for each in (hidden, weight, bias):
        gradients = [
            torch.autograd.grad(loss, each, retain_graph=True)[0] for loss in (ours, wanted)
        ]
        assert gradients[1].abs().max() > 1e-3
        torch.testing.assert_close(*gradients, atol=1e-6, rtol=0)


@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize("more", [-2, 0, 3], ids=lambda more: f"{more:+}")
def test_an_equal_teacher_has_no_full_kl(more, k):
    """With rows for tokens that the other model lacks, too, as padding of improbable tokens."""
    size, shared = V + 2, V + 2 + min(more, 0)
    hidden, weight = torch.randn(7, 3, generator=seeded()), torch.randn(size, 3, generator=seeded())
    weight[shared:] = 0
    bias = torch.zeros(size).index_fill(0, torch.arange(shared, size), -1e9).requires_grad_()
    padding = more if more > 0 else 0
    teacher = TeacherStates(
        hidden=hidden,
        weight=torch.nn.functional.pad(weight, (0, 0, 0, padding))[: size + more],
        bias=torch.nn.functional.pad(bias.detach(), (0, padding), value=-1e9)[: size + more],
        top_k=k,
    )
    scores = fused_scores(hidden, weight, torch.arange(7) % V, bias=bias, teacher=teacher)
    # Sums of other lengths are rounded otherwise.
    within = 1e-6 if more else 0
    assert scores.teacher_kl.abs().max() <= within
    assert torch.autograd.grad(scores.teacher_kl.sum(), bias)[0].abs().max() <= within
