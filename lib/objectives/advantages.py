"""Advantages: how much better a completion was than its group.

With R = [r_1 … r_G] the rewards of one problem's completions, mean and std over the group:

    none    A_i = r_i                                            REINFORCE
    mean    A_i = r_i − mean(R)                                  Dr. GRPO, arXiv:2503.20783
    group   A_i = (r_i − mean(R)) / (std(R) + ε)                 GRPO, arXiv:2402.03300
    batch   A_i = (r_i − mean(R)) / (std(all rewards) + ε)       Lite PPO, arXiv:2508.08221
    rloo    A_i = r_i − mean(R without r_i) = G/(G−1)·`mean`     RLOO, arXiv:2402.14740
    GDPO    A_i = s_i / (std(all s) + ε), s_i the weighted sum of
            `group` over each reward function by itself          GDPO, arXiv:2601.05242

Differs from the papers in: std is the unbiased one (divisor n − 1), as in TRL; except for `none`, a
group with all rewards equal gets exact zeros, where rounding could leave ±1e-8/ε. GDPO's mean over
the batch, which is 0 but for rounding, is not subtracted.

Shapes: P problems, G completions of each (a group), B = P·G; F reward functions.
"""

from collections.abc import Callable
from typing import get_args

import torch
from torch import Tensor

from lib.objectives import Baseline as Baseline


def group_advantages(
    rewards: Tensor,
    *,
    baseline: Baseline | Callable[..., Tensor],
    right: Tensor | None = None,
    components: Tensor | None = None,
    eps: float = 1e-4,
) -> Tensor:
    """Credit each completion relative to the other completions of the same problem.

    Args:
        rewards: [P, G] total reward per completion, any scale.
        baseline: a name from the table above, or a plugin's function (`lib.objectives.own`).
        right: [P, G] bool, True for completions with the right answer, whatever their reward.
        components: [P, G, F] the reward of each function, without its weight.
        eps: added to the standard deviation (TRL's value by default).

    Returns:
        [P, G]. Except for "none" and a function, each group sums to 0.

    Raises:
        ValueError: unknown baseline, or G < 2 where a baseline needs a group.
    """
    if callable(baseline):
        return baseline(rewards, right=right, components=components)
    if baseline not in get_args(Baseline):
        raise ValueError(f"no baseline `{baseline}`; there are {', '.join(get_args(Baseline))}")
    if baseline == "none":
        return rewards
    group_size = rewards.shape[-1]  # G
    if group_size < 2:
        raise ValueError(f"group_size={group_size}; `{baseline}` advantages need at least 2")
    centred = rewards - rewards.mean(-1, keepdim=True)
    if baseline == "rloo":
        centred = centred * (group_size / (group_size - 1))
    elif baseline == "group":
        centred = centred / (rewards.std(-1, keepdim=True) + eps)
    elif baseline == "batch":
        centred = centred / (rewards.std() + eps)
    return torch.where(has_signal(rewards).unsqueeze(-1), centred, 0)


def gdpo_advantages(components: Tensor, weights: Tensor, *, eps: float = 1e-4) -> Tensor:
    """Normalise each reward function's rewards in their group, then the weighted sum in the batch.

    Args:
        components: [P, G, F] the reward of each function.
        weights: [F].
        eps: added to both standard deviations, of a group and of the batch.

    Returns:
        [P, G]; each group sums to 0.
    """
    # [F, P, G]
    each = group_advantages(components.movedim(-1, 0), baseline="group", eps=eps)
    total = torch.tensordot(weights.to(each), each, dims=1)  # [P, G]
    advantages: Tensor = total / (total.std() + eps)
    return advantages


def has_signal(rewards: Tensor) -> Tensor:
    """Return a mask [..., P] of the groups of rewards [..., P, G] that differ."""
    # Not std > 0: equal floats can have a std above 0 (0.1 eight times: 8e-9).
    return rewards.amax(-1) > rewards.amin(-1)
