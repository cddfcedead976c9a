"""Rewards by name, and the named stacks, each a file that is imported when it is named.

A new stack is one file with its `REWARDS` and one line in `STACKS`. Weights are the caller's
(params: `reward.weights`): a stack tells only what is measured.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from lib.errors import UserError
from lib.prompts.base import PromptFormat
from lib.verifier.rewards.base import Reward, RewardFn, RewardSettings, Rollout, as_trl

STACKS: dict[str, tuple[str, ...]] = {
    "tiny": ("format", "answer"),
    "s0": ("match_format_exactly", "match_format_approximately", "check_answer", "check_numbers"),
    "s1": ("s1_correctness", "s1_numeric", "s1_xml_format"),
    "s4": ("s4_correctness", "s4_integer", "s4_strict_format", "s4_soft_format", "s4_tag_count"),
    "r1_zero": ("r1_zero",),
}
"""File in this folder: names of its rewards, in the order of the weights."""

REWARDS: dict[str, str] = {
    name: file
    for file, names in {**STACKS, "shaping": ("overlong", "repetition", "cosine_length")}.items()
    for name in names
}
"""Name of a reward: file that has it."""


def load_reward(name: str) -> Reward:
    """The reward called `name`; imports its file.

    Raises:
        UserError: there is none (lists those that there are).
    """
    if name not in REWARDS:
        raise UserError(f"reward.stack: no reward `{name}`; there are {', '.join(REWARDS)}")
    reward: Reward = importlib.import_module(f"{__name__}.{REWARDS[name]}").REWARDS[name]
    return reward


def build_rewards(
    names: Sequence[str], *, prompt_format: PromptFormat, **settings: Any
) -> list[RewardFn]:
    """Reward functions for TRL, in the order of `names`; each is called as it is named.

    Args:
        names: keys of `REWARDS`, such as `STACKS["tiny"]`.
        prompt_format: the format that the prompts ask for.
        settings: fields of `RewardSettings`.

    Raises:
        UserError: a name that is not registered (lists those that are), a setting that is needed
            and not set, a prompt format without the tags that are counted.
    """
    known = RewardSettings(**settings)
    return [
        as_trl(name, load_reward(name), prompt_format=prompt_format, settings=known)
        for name in names
    ]


def stack_range(
    names: Sequence[str], weights: Sequence[float] | Mapping[str, float], **settings: Any
) -> tuple[float, float]:
    """Smallest and largest weighted total of a stack, each reward taken by itself.

    Raises:
        UserError: an unregistered name, or not one weight a name.
    """
    if isinstance(weights, Mapping):
        weights = [weights[name] for name in names]
    if len(weights) != len(names):
        raise UserError(
            f"reward.weights: {len(weights)} weights for {len(names)} rewards ({', '.join(names)})"
        )
    known = RewardSettings(**settings)
    ends = [
        sorted(weight * end for end in load_reward(name).range(known))
        for name, weight in zip(names, weights, strict=True)
    ]
    return sum(low for low, _ in ends), sum(high for _, high in ends)


__all__ = [
    "REWARDS",
    "STACKS",
    "Reward",
    "RewardFn",
    "RewardSettings",
    "Rollout",
    "build_rewards",
    "load_reward",
    "stack_range",
]
