"""Advantages: how much better a completion was than its group.

With R = [r_1 … r_G] the rewards of one problem's completions, mean and std over the group:

    none    A_i = r_i                                            REINFORCE
    mean    A_i = r_i − mean(R)                                  Dr. GRPO, arXiv:2503.20783
    group   A_i = (r_i − mean(R)) / (std(R) + ε)                 GRPO, arXiv:2402.03300
    batch   A_i = (r_i − mean(R)) / (std(all rewards) + ε)       Lite PPO, arXiv:2508.08221
    rloo    A_i = r_i − mean(R without r_i) = G/(G−1)·`mean`     RLOO, arXiv:2402.14740

Differs from the papers in: std is the unbiased one (divisor G − 1), as in TRL; a group whose
rewards are all equal gets exact zeros, where rounding could leave ±1e-8/ε.

Shapes: P problems, G completions of each (a group), B = P·G.
"""

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

Baseline = Literal["none", "mean", "group", "batch", "rloo"]


def group_advantages(rewards: Tensor, *, baseline: Baseline, eps: float = 1e-4) -> Tensor:
    """Credit each completion relative to the other completions of the same problem.

    Args:
        rewards: [P, G] total reward per completion, any scale.
        baseline: see the table above; `grpo.advantage` in params has the same names.
        eps: added to the standard deviation (TRL's value by default).

    Returns:
        [P, G]. Except for "none", each group sums to 0 and a group with equal rewards gets
        exact zeros: no signal, no division by nearly 0.

    Raises:
        ValueError: unknown baseline, or G < 2 where a baseline needs a group.
    """
    if baseline not in get_args(Baseline):
        raise ValueError(f"no baseline `{baseline}`; there are {', '.join(get_args(Baseline))}")
    if baseline == "none":
        return rewards
    group_size = rewards.shape[-1]
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


def has_signal(rewards: Tensor) -> Tensor:
    """Which groups have rewards that differ, and so move the policy.

    By max − min: a standard deviation of equal floats need not be 0 (0.1 thrice: 1e-9).

    Args:
        rewards: [P, G].

    Returns:
        [P] bool.
    """
    return rewards.amax(-1) > rewards.amin(-1)


def compute_group_normalized_rewards(
    reward_fn: Callable[[str, str], Mapping[str, float]],
    rollout_responses: list[str],
    repeated_ground_truths: list[str],
    group_size: int,
    advantage_eps: float,
    normalize_by_std: bool,
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Score completions and turn their rewards into group-relative advantages.

    Args:
        reward_fn: (completion, reference) → "reward", "format_reward", "answer_reward".
        rollout_responses: B completions, those of one problem next to each other.
        repeated_ground_truths: B references, each repeated G times.
        group_size: G.
        advantage_eps: added to the standard deviation.
        normalize_by_std: True is GRPO (`group`), False is Dr. GRPO (`mean`).

    Returns:
        advantages [B]; raw rewards [B]; metadata: mean, std, min and max of the reward, the mean
        of every component that `reward_fn` returns, the share of groups without signal.

    Raises:
        ValueError: the lists differ in length, or B is not a multiple of G, or G < 2.
    """
    if len(rollout_responses) != len(repeated_ground_truths):
        raise ValueError(
            f"{len(rollout_responses)} completions but {len(repeated_ground_truths)} references"
        )
    if not rollout_responses or group_size < 1 or len(rollout_responses) % group_size:
        raise ValueError(
            f"{len(rollout_responses)} completions are not whole groups of {group_size}"
        )
    pairs = zip(rollout_responses, repeated_ground_truths, strict=True)
    scores = [reward_fn(completion, reference) for completion, reference in pairs]
    raw_rewards = torch.tensor([score["reward"] for score in scores], dtype=torch.float32)
    groups = raw_rewards.view(-1, group_size)
    baseline: Baseline = "group" if normalize_by_std else "mean"
    advantages = group_advantages(groups, baseline=baseline, eps=advantage_eps)
    return advantages.flatten(), raw_rewards, _reward_statistics(scores, groups)


def _reward_statistics(scores: list[Mapping[str, float]], groups: Tensor) -> dict[str, float]:
    components = {
        f"{name}_mean": sum(score[name] for score in scores) / len(scores) for name in scores[0]
    }
    return components | {
        "reward_std": groups.std().item(),
        "reward_min": groups.min().item(),
        "reward_max": groups.max().item(),
        "zero_signal_groups": 1 - has_signal(groups).float().mean().item(),
    }
