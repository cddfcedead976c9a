"""Example advantages of verdicts, against their papers' definitions."""

import itertools
import statistics

import pytest
import torch

from lib.core.errors import UserError
from lib.objectives.own import objective

RIGHT = torch.tensor([[i < c for i in range(8)] for c in range(9)])
"""Groups of eight with none to all of them right."""


def advantages(name: str) -> torch.Tensor:
    return objective(f"plugins/objectives/diversity.py:{name}")(torch.rand(9, 8), right=RIGHT)


@pytest.mark.parametrize("count", range(9))
def test_pass_at_4_is_a_completions_part_in_all_subsets(count):
    """A subset of four earns 1 if one of it is right; rewards are standardised over all subsets."""
    subsets = list(itertools.combinations(range(8), 4))
    rewards = [float(any(RIGHT[count, i] for i in subset)) for subset in subsets]
    deviation = statistics.pstdev(rewards)
    expected = [
        statistics.fmean(
            (reward - statistics.fmean(rewards)) / deviation if deviation else 0.0
            for subset, reward in zip(subsets, rewards, strict=True)
            if i in subset
        )
        for i in range(8)
    ]
    assert advantages("pass_at_4")[count].tolist() == pytest.approx(expected, abs=1e-6)


def test_pass_at_4_needs_groups_of_four():
    with pytest.raises(UserError, match=r"grpo\.group_size=3"):
        objective("plugins/objectives/diversity.py:pass_at_4")(torch.rand(9, 3), right=RIGHT[:, :3])


def test_maxrl_divides_by_the_share_that_is_right():
    one_of_eight = [7.0, *[-1.0] * 7]
    assert advantages("maxrl")[1].tolist() == pytest.approx(one_of_eight)
    assert not advantages("maxrl")[[0, 8]].any()


def test_wrong_ones_weigh_minus_1_and_right_ones_little():
    for name, weight in (("negative", 0.0), ("weighted", 0.1)):
        expected = [weight] * 3 + [-1.0] * 5
        assert advantages(name)[3].tolist() == pytest.approx(expected)
