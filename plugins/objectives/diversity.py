"""Advantages that keep a policy's answers apart, from the verdicts and not from the rewards.

P problems, G completions of each, c of them right.
"""

import math

import torch
from torch import Tensor

K = 4
"""Attempts that `pass_at_4` asks one right answer of."""


def maxrl(rewards: Tensor, right: Tensor) -> Tensor:
    """[P, G] (r − mean r) / mean r over right or wrong, 0 where none is right.

    MaxRL: the more seldom a problem is solved, the more it weighs (arXiv:2602.02710).
    """
    solved = right.to(rewards.dtype)
    share = solved.mean(-1, keepdim=True)
    return torch.where(share > 0, (solved - share) / share, 0)


def pass_at_4(rewards: Tensor, right: Tensor) -> Tensor:
    """[P, G] a completion's part in the group's standardised pass@4 (arXiv:2508.10751).

    0 where all subsets of four completions hold a right one, or none does.
    """
    size = right.shape[-1]
    table = torch.tensor([_of_count(count, size) for count in range(size + 1)])
    credit = table.to(rewards)[right.sum(-1)]
    return torch.where(right, credit[:, :1], credit[:, 1:])


def _of_count(count: int, size: int) -> tuple[float, float]:
    """Advantage of a right completion and of a wrong one, with `count` of `size` right."""
    mean = 1 - math.comb(size - count, K) / math.comb(size, K)
    deviation = math.sqrt(mean * (1 - mean))
    if deviation == 0:
        return 0.0, 0.0
    # Of the groups of k that hold this wrong completion, those whose others are wrong too fail.
    passed = 1 - math.comb(size - count - 1, K - 1) / math.comb(size - 1, K - 1)
    return (1 - mean) / deviation, (passed - mean) / deviation
