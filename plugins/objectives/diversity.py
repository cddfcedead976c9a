"""Plugin advantages that keep a policy's answers diverse, for `grpo.advantage`.

They use only the verdicts (`right`, [P, G], bool), not the rewards. P problems, G completions of
each.
"""

import math

import torch
from torch import Tensor

K = 4
"""k of `pass_at_4`."""


def maxrl(rewards: Tensor, right: Tensor) -> Tensor:
    """Return (r − mean r) / mean r [P, G], with r = 1 for a right completion and 0 for a wrong one.

    MaxRL (arXiv:2602.02710): the rarer a right answer, the larger its advantage. A group without a
    right completion gets zeros.
    """
    solved = right.to(rewards.dtype)
    share = solved.mean(-1, keepdim=True)
    # `where` computes the quotient for all groups; in one without a right completion it is 0 / 0,
    # NaN, and discarded.
    return torch.where(share > 0, (solved - share) / share, 0)


def pass_at_4(rewards: Tensor, right: Tensor) -> Tensor:
    """Return the advantages [P, G] of pass@4 (arXiv:2508.10751).

    A subset of four completions has reward 1 if one of them is right. A completion's advantage is
    the mean of its subsets' rewards, minus the mean of all subsets, divided by their standard
    deviation; 0 if all subsets have the same reward.

    Raises:
        ValueError: a group has fewer than four completions.
    """
    size = right.shape[-1]
    if size < K:
        raise ValueError(f"grpo.group_size={size}; pass@{K} needs at least {K}")
    # [G + 1, 2]: row c has the advantage of a right and of a wrong completion if c are right.
    table = torch.tensor([_advantages_by_count(count, size) for count in range(size + 1)])
    # [P, 2]: a group's row, by its number of right completions.
    credit = table.to(rewards)[right.sum(-1)]
    return torch.where(right, credit[:, :1], credit[:, 1:])


def negative(rewards: Tensor, right: Tensor) -> Tensor:
    """Return -1 [P, G] for a wrong completion, 0 for a right one.

    Negative sample reinforcement (arXiv:2506.01347): the policy learns only from wrong completions,
    so that no right answer is preferred to another.
    """
    return right.to(rewards.dtype) - 1


def weighted(rewards: Tensor, right: Tensor) -> Tensor:
    """Return -1 [P, G] for a wrong completion, 0.1 for a right one.

    W-REINFORCE, of the same paper (arXiv:2506.01347).
    """
    return torch.where(right, 0.1, -1.0).to(rewards.dtype)


def _advantages_by_count(count: int, size: int) -> tuple[float, float]:
    """Return pass@k's advantages in a group of `size` completions, `count` of them right.

    Returns:
        (of a right completion, of a wrong one).
    """
    # The mean reward of all subsets, pass@k: a subset fails if all its completions are wrong.
    # `comb` is 0 if fewer than k completions are wrong: pass@k is then 1.
    mean = 1 - math.comb(size - count, K) / math.comb(size, K)
    # Of rewards that are 0 or 1.
    deviation = math.sqrt(mean * (1 - mean))
    # Every subset has a right completion, or none has one.
    if deviation == 0:
        return 0.0, 0.0
    # The mean reward of the subsets with one wrong completion: such a subset fails if its other
    # k - 1 completions are wrong too.
    passed = 1 - math.comb(size - count - 1, K - 1) / math.comb(size - 1, K - 1)
    # Every subset with a right completion has reward 1.
    return (1 - mean) / deviation, (passed - mean) / deviation
