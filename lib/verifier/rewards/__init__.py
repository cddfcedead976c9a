"""Rewards by name, and the named stacks: the files of this folder, imported when they are named.

A new stack is one file with its `REWARDS`, in the order of the weights. Weights are the caller's
(params: `reward.weights`): a stack tells only what is measured.
"""

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.errors import UserError
from lib.plugins import is_plugin
from lib.prompts.base import PromptFormat
from lib.verifier.rewards.base import BoundedReward, RewardFn, RewardSettings, Rollout, as_trl
from lib.verifier.rewards.own import own_range, own_reward

_FILES = {file.stem for file in Path(__file__).parent.glob("*.py")} - {"__init__", "base", "own"}


class _Stacks(Mapping[str, tuple[str, ...]]):
    """File in this folder: names of its rewards, in the order of the weights."""

    def __getitem__(self, file: str) -> tuple[str, ...]:
        if file not in _FILES:
            raise KeyError(file)
        return tuple(_rewards(file))

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(_FILES))

    def __len__(self) -> int:
        return len(_FILES)


STACKS = _Stacks()


def _rewards(file: str) -> dict[str, BoundedReward]:
    rewards: dict[str, BoundedReward] = importlib.import_module(f"{__name__}.{file}").REWARDS
    return rewards


def reward_names() -> list[str]:
    """Names of all rewards; imports their files."""
    return [name for names in STACKS.values() for name in names]


def load_reward(name: str) -> BoundedReward:
    """The reward called `name`; files that are imported already are searched first.

    Raises:
        UserError: there is none (lists those that there are).
    """
    for file in sorted(STACKS, key=lambda file: f"{__name__}.{file}" not in sys.modules):
        if name in (rewards := _rewards(file)):
            return rewards[name]
    raise UserError(f"reward.stack: no reward `{name}`; there are {', '.join(reward_names())}")


def build_rewards(
    names: Sequence[str], *, prompt_format: PromptFormat, **settings: Any
) -> list[RewardFn]:
    """Reward functions for TRL, in the order of `names`; each is called as it is named.

    Args:
        names: such as `STACKS["tiny"]`, or `plugins/file.py:name`.
        prompt_format: the format that the prompts ask for.
        settings: fields of `RewardSettings`.

    Raises:
        UserError: a name that no file has (lists those that there are), a setting that is needed
            and not set, a prompt format without the tags that are counted.
    """
    known = RewardSettings(**settings)
    return [
        own_reward(name, prompt_format=prompt_format, settings=known)
        if is_plugin(name)
        else as_trl(name, load_reward(name), prompt_format=prompt_format, settings=known)
        for name in names
    ]


def stack_range(
    names: Sequence[str], weights: Sequence[float] | Mapping[str, float], **settings: Any
) -> tuple[float, float]:
    """Smallest and largest weighted total of a stack, each reward taken by itself.

    Infinite where one of `plugins/` does not say.

    Raises:
        UserError: an unknown name, or not one weight a name.
    """
    if isinstance(weights, Mapping):
        weights = [weights[name] for name in names]
    if len(weights) != len(names):
        raise UserError(
            f"reward.weights: {len(weights)} weights for {len(names)} rewards ({', '.join(names)})"
        )
    known = RewardSettings(**settings)
    ranges = [
        own_range(name, known) if is_plugin(name) else load_reward(name).range(known)
        for name in names
    ]
    ends = [
        sorted(weight * end for end in own) if weight else (0.0, 0.0)
        for own, weight in zip(ranges, weights, strict=True)
    ]
    return sum(low for low, _ in ends), sum(high for _, high in ends)


__all__ = [
    "STACKS",
    "BoundedReward",
    "RewardFn",
    "RewardSettings",
    "Rollout",
    "build_rewards",
    "load_reward",
    "reward_names",
    "stack_range",
]
