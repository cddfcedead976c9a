"""Advantages that keep a policy's answers diverse, from verdicts and not from rewards.

P problems, G completions of each, c of them right.
"""

import math

import torch
from torch import Tensor

K = 4
"""k of `pass_at_4`."""


def maxrl(rewards: Tensor, right: Tensor) -> Tensor:
    """Return (r − mean r) / mean r [P, G] over right or wrong, 0 if none is right.

    MaxRL (arXiv:2602.02710): the rarer a right answer, the larger its advantage.
    """
    solved = right.to(rewards.dtype)
    share = solved.mean(-1, keepdim=True)
    # `where` computes both branches: the discarded one has NaN from 0 / 0.
    return torch.where(share > 0, (solved - share) / share, 0)


def pass_at_4(rewards: Tensor, right: Tensor) -> Tensor:
    """Return each completion's share [P, G] of the group's standardised pass@4 (arXiv:2508.10751).

    0 if all subsets of four completions have a right one, or none has.
    """
    size = right.shape[-1]
    # [G + 1, 2] by number of right completions, for a right and for a wrong one.
    table = torch.tensor([_advantages_by_count(count, size) for count in range(size + 1)])
    credit = table.to(rewards)[right.sum(-1)]
    return torch.where(right, credit[:, :1], credit[:, 1:])


def negative(rewards: Tensor, right: Tensor) -> Tensor:
    """Return -1 [P, G] for a wrong completion, 0 for a right one.

    Negative sample reinforcement (arXiv:2506.01347): nothing right is made more likely directly, so
    that no right answer takes the place of another.
    """
    return right.to(rewards.dtype) - 1


def weighted(rewards: Tensor, right: Tensor) -> Tensor:
    """Return -1 [P, G] for a wrong completion, 0.1 for a right one: W-REINFORCE, same paper."""
    return torch.where(right, 0.1, -1.0).to(rewards.dtype)


def _advantages_by_count(count: int, size: int) -> tuple[float, float]:
    """Return the advantage of a right and of a wrong completion, with `count` of `size` right."""
    # `comb` is 0 if fewer than k completions are wrong: pass@k is then 1.
    mean = 1 - math.comb(size - count, K) / math.comb(size, K)
    deviation = math.sqrt(mean * (1 - mean))
    # Every subset has a right completion, or none has one.
    if deviation == 0:
        return 0.0, 0.0
    # A subset of k with this wrong completion fails if its other k - 1 are wrong too.
    passed = 1 - math.comb(size - count - 1, K - 1) / math.comb(size - 1, K - 1)
    return (1 - mean) / deviation, (passed - mean) / deviation
