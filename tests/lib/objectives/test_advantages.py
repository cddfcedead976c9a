import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from examples.cs336 import compute_group_normalized_rewards
from lib.objectives.advantages import group_advantages, has_signal

BASELINES = pytest.mark.parametrize("baseline", ["mean", "group", "batch", "rloo"])


@st.composite
def groups(draw: st.DrawFn) -> Tensor:
    """Draw [P, G] rewards like a verifier's: few distinct values, common ties."""
    size = draw(st.integers(2, 6))
    reward = st.sampled_from([-1.0, 0.0, 0.1, 0.25, 1.0, 12.5])
    rows = draw(st.lists(st.lists(reward, min_size=size, max_size=size), min_size=1, max_size=4))
    return torch.tensor(rows, dtype=torch.float64)


@BASELINES
@given(rewards=groups())
def test_advantages_of_a_group_sum_to_zero(baseline, rewards):
    advantages = group_advantages(rewards, baseline=baseline)
    assert advantages.sum(-1).abs().max() <= 1e-9


@given(rewards=groups())
def test_rloo_subtracts_the_mean_of_the_others(rewards):
    others = [
        [statistics.fmean(row[:i] + row[i + 1 :]) for i in range(len(row))]
        for row in rewards.tolist()
    ]
    expected = rewards - torch.tensor(others, dtype=torch.float64)
    actual = group_advantages(rewards, baseline="rloo")
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=0)


@BASELINES
def test_constant_reward_group_gives_exact_zeros(baseline):
    # in float32 the mean of ten 0.1 is not 0.1
    rewards = torch.tensor([[0.1] * 10, [0.0] * 9 + [1.0]])
    assert rewards[0].mean() != rewards[0, 0]
    advantages = group_advantages(rewards, baseline=baseline, eps=1e-10)
    assert advantages[0].tolist() == [0.0] * 10
    assert advantages[1, 9] > 0
    assert has_signal(rewards).tolist() == [False, True]


def test_a_group_of_one_is_refused_except_without_a_baseline():
    single = torch.tensor([[1.0]])
    assert group_advantages(single, baseline="none").item() == 1  # rewards as they are
    with pytest.raises(ValueError, match="group_size=1"):
        group_advantages(single, baseline="mean")


def _length_reward(completion: str, reference: str) -> dict[str, float]:
    reward = float(len(completion) - len(reference))
    return {"reward": reward, "format_reward": 1.0, "answer_reward": reward / 2}


def test_rewards_are_scored_in_order_and_described():
    advantages, raw, metadata = compute_group_normalized_rewards(
        _length_reward, ["a", "aaa", "a", "a"], ["", "", "", ""], 2, 0.0, False
    )
    assert raw.tolist() == [1, 3, 1, 1]
    assert advantages.tolist() == [-1, 1, 0, 0]
    assert metadata == {
        "reward_mean": 1.5,
        "format_reward_mean": 1.0,
        "answer_reward_mean": 0.75,
        "zero_signal_groups": 0.5,
    }


@pytest.mark.parametrize(
    ("completions", "references", "match"),
    [(["a", "b"], [""], "argument 2 is shorter"), (["a", "b", "c"], [""] * 3, "whole groups of 2")],
)
def test_lists_that_do_not_fit_are_refused(completions, references, match):
    with pytest.raises(ValueError, match=match):
        compute_group_normalized_rewards(_length_reward, completions, references, 2, 1e-6, True)
