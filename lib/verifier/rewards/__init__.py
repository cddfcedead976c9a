"""Rewards by name, and the named stacks.

A new reward is one function `Rollout -> float` and one line in `REWARDS`. Weights are the
caller's (params: `reward.weights`): a stack says only what is measured.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lib.errors import UserError
from lib.prompts.base import PromptFormat
from lib.verifier.rewards import basic, s0, s1, s4, shaping
from lib.verifier.rewards.base import Reward, RewardFn, RewardSettings, Rollout, as_trl, check

REWARDS: dict[str, Reward] = {
    "format": Reward(basic.format_reward, (0.0, 1.0)),
    "answer": Reward(basic.answer_reward, (0.0, 1.0)),
    "r1_zero": Reward(basic.r1_zero, (0.0, 1.0)),
    "match_format_exactly": Reward(s0.match_format_exactly, (0.0, 3.0), tagged=True),
    "match_format_approximately": Reward(s0.match_format_approximately, (-3.0, 1.5), tagged=True),
    "check_answer": Reward(s0.check_answer, (-2.0, 5.0), tagged=True),
    "check_numbers": Reward(s0.check_numbers, (-1.5, 3.0), tagged=True),
    "s1_correctness": Reward(s1.correctness, (0.0, 1.0)),
    "s1_numeric": Reward(s1.numeric, (0.0, 0.1)),
    "s1_xml_format": Reward(s1.xml_format, (0.0, 0.1), tagged=True),
    "s4_correctness": Reward(s4.correctness, (0.0, 2.0)),
    "s4_integer": Reward(s4.integer, (0.0, 0.5)),
    "s4_strict_format": Reward(s4.strict_format, (0.0, 0.5), tagged=True),
    "s4_soft_format": Reward(s4.soft_format, (0.0, 0.5), tagged=True),
    "s4_tag_count": Reward(s4.tag_count, (0.0, 0.5), tagged=True),
    "overlong": Reward(shaping.overlong, (-1.0, 0.0), needs=shaping.OVERLONG),
    "repetition": Reward(shaping.repetition, shaping.repetition_bounds, needs=shaping.REPETITION),
    "cosine_length": Reward(shaping.cosine_length, shaping.cosine_bounds, needs=shaping.COSINE),
}

STACKS: dict[str, tuple[str, ...]] = {
    "tiny": ("format", "answer"),
    "s0": (
        "match_format_exactly",
        "match_format_approximately",
        "check_answer",
        "check_numbers",
    ),
    "s1": ("s1_correctness", "s1_numeric", "s1_xml_format"),
    "s4": ("s4_correctness", "s4_integer", "s4_strict_format", "s4_soft_format", "s4_tag_count"),
    "r1_zero": ("r1_zero",),
}


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
    rewards = [(name, _reward(name)) for name in names]
    for name, reward in rewards:
        check(name, reward, prompt_format=prompt_format, settings=known)
    return [
        as_trl(name, reward, prompt_format=prompt_format, settings=known)
        for name, reward in rewards
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
        sorted(weight * end for end in _reward(name).range(known))
        for name, weight in zip(names, weights, strict=True)
    ]
    return sum(low for low, _ in ends), sum(high for _, high in ends)


def _reward(name: str) -> Reward:
    if name not in REWARDS:
        raise UserError(f"reward.stack: no reward `{name}`; there are {', '.join(REWARDS)}")
    return REWARDS[name]


__all__ = [
    "REWARDS",
    "STACKS",
    "Reward",
    "RewardFn",
    "RewardSettings",
    "Rollout",
    "build_rewards",
    "stack_range",
]
