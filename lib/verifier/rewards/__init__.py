"""Rewards by name, and the named stacks: the files of lib/stacks, imported when they are named."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.errors import UserError
from lib.plugins import is_plugin, label
from lib.prompts.base import PromptFormat
from lib.verifier.rewards.base import BoundedReward, RewardFn, RewardSettings, Rollout, as_trl
from lib.verifier.rewards.own import own_range, own_reward

_FOLDER = Path(__file__).parents[2] / "stacks"
_FILES = {file.stem for file in _FOLDER.glob("*.py")} - {"__init__"}


class _Stacks(Mapping[str, tuple[str, ...]]):
    """Stack: its rewards as `stack:name`, in the order of the weights."""

    def __getitem__(self, stack: str) -> tuple[str, ...]:
        if stack not in _FILES:
            raise KeyError(stack)
        return tuple(f"{stack}:{name}" for name in _rewards(stack))

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(_FILES))

    def __len__(self) -> int:
        return len(_FILES)


STACKS = _Stacks()


def _rewards(stack: str) -> dict[str, BoundedReward]:
    rewards: dict[str, BoundedReward] = importlib.import_module(f"lib.stacks.{stack}").REWARDS
    return rewards


def reward_names() -> list[str]:
    """Names of all rewards, without their stacks; imports all files."""
    return [label(name) for names in STACKS.values() for name in names]


def load_reward(name: str) -> BoundedReward:
    """The reward called `name`: of `stack:name` only that file is read, of a bare name all are.

    Raises:
        UserError: no stack has it (lists those that there are), or more than one has.
    """
    stack, _, own = name.rpartition(":")
    owners = [file for file in ([stack] if stack else STACKS) if own in _rewards(file)]
    if not owners:
        known = ", ".join(reward_names())
        raise UserError(f"reward.extra: no reward `{own}`; there are {known}")
    if len(owners) > 1:
        raise UserError(f"reward.extra: `{own}` is in {' and '.join(owners)}; rename one")
    return _rewards(owners[0])[own]


def build_rewards(
    names: Sequence[str], *, prompt_format: PromptFormat, **settings: Any
) -> list[RewardFn]:
    """Reward functions for TRL, in the order of `names`; each is called by its name.

    Args:
        names: such as those of `STACKS["tiny"]`, a bare `answer`, or `plugins/file.py:name`.
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
        else as_trl(label(name), load_reward(name), prompt_format=prompt_format, settings=known)
        for name in names
    ]


def stack_range(
    names: Sequence[str], weights: Sequence[float], **settings: Any
) -> tuple[float, float]:
    """Smallest and largest weighted total of a stack, each reward taken by itself.

    Infinite where one of `plugins/` does not say.

    Raises:
        UserError: an unknown name, or not one weight a name.
    """
    if len(weights) != len(names):
        labels = ", ".join(map(label, names))
        raise UserError(
            f"reward.weights: {len(weights)} weights for {len(names)} rewards ({labels})"
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
