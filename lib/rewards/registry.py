"""Rewards by name: of the stacks, which are files imported when they are named, and of plugins."""

import dataclasses
import importlib
import inspect
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lib.errors import UserError
from lib.plugins import in_words, is_plugin, label, load_plugin
from lib.rewards.rollout import BoundedReward, Rollout, as_messages, completion_text

STACKS = tuple(sorted(file.stem for file in Path(__file__).parent.glob("stacks/[!_]*.py")))

UNBOUNDED = (-math.inf, math.inf)


def rewards_of(stack: str) -> tuple[str, ...]:
    """The rewards of a stack as `stack:name`, in the order of the weights."""
    return tuple(f"{stack}:{name}" for name in _rewards(stack))


def _rewards(stack: str) -> dict[str, BoundedReward]:
    rewards: dict[str, BoundedReward] = importlib.import_module(
        f"lib.rewards.stacks.{stack}"
    ).REWARDS
    return rewards


def reward_names() -> list[str]:
    """Names of all rewards, without their stacks; imports all files."""
    return [name for stack in STACKS for name in _rewards(stack)]


def load_reward(name: str) -> BoundedReward:
    """The reward called `name`: of `stack:name` only that file is read, of a bare name all are.

    Raises:
        UserError: no stack has it (lists those that there are), or more than one has.
    """
    stack, _, bare = name.rpartition(":")
    owners = [file for file in ([stack] if stack else STACKS) if bare in _rewards(file)]
    if not owners:
        known = ", ".join(reward_names())
        raise UserError(f"reward.extra: no reward `{bare}`; there are {known}")
    if len(owners) > 1:
        raise UserError(f"reward.extra: `{bare}` is in {' and '.join(owners)}; rename one")
    return _rewards(owners[0])[bare]


def stack_range(
    names: Sequence[str], weights: Sequence[float], **settings: Any
) -> tuple[float, float]:
    """Smallest and largest weighted total of a stack, each reward taken by itself.

    Infinite where one of `plugins/` does not say.

    Raises:
        UserError: an unknown name.
    """
    lowest = highest = 0.0
    for name, weight in zip(names, weights, strict=True):
        reward = load_plugin(name) if is_plugin(name) else load_reward(name)
        ends = reward.range(settings) if isinstance(reward, BoundedReward) else UNBOUNDED
        # A weight of 0 takes away what has no bound, too.
        low, high = sorted(weight * end for end in ends) if weight else (0.0, 0.0)
        lowest, highest = lowest + low, highest + high
    return lowest, highest


def own_reward(name: str) -> BoundedReward | Callable[..., list[float]]:
    """The plugin called `name`, held to what a reward promises.

    It is a `BoundedReward`, a function from a `Rollout` to a number, or a function with TRL's
    signature, which its parameter `completions` tells. None for a completion, which TRL takes as
    "does not apply", adds nothing.

    Raises:
        UserError: it is none of them; when it is called, it raises or gives anything but numbers.
    """
    own = load_plugin(name)
    reward = own if isinstance(own, BoundedReward) else BoundedReward(own, UNBOUNDED)
    if not callable(reward.score):
        raise UserError(f"{name}: expected a function or a BoundedReward, got {own!r}")

    def numbers(inputs: str, *rollout: Rollout, **columns: Any) -> list[float]:
        try:
            result: Any = reward.score(*rollout, **columns)
        except Exception as error:
            raise in_words(name, error, inputs=inputs) from error
        values = list(result) if columns and isinstance(result, Sequence) else [result]
        values = [0.0 if value is None and columns else value for value in values]
        for value in values:
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise UserError(f"{name}: gave {value!r} for {inputs}; expected a finite number")
        return [float(value) for value in values]

    def score(rollout: Rollout) -> float:
        return numbers(_shown(rollout.completion), rollout)[0]

    def score_all(
        prompts: object = None,
        completions: Sequence[Any] = (),
        *,
        tags: object = None,  # of the problem: a `Rollout` has them
        **columns: Any,
    ) -> list[float]:
        texts = list(map(completion_text, completions))
        inputs = (
            f"{len(texts)} completions, the first {_shown(texts[0]) if texts else 'of none'}, and "
            f"the columns {', '.join(columns)}"
        )
        messages = list(map(as_messages, texts))
        values = numbers(inputs, prompts=prompts, completions=messages, **columns)
        if len(values) != len(texts):
            raise UserError(f"{name}: {len(values)} values for {inputs}; expected one for each")
        return values

    score_all.__name__ = label(name)
    if "completions" in inspect.signature(reward.score).parameters:
        return score_all
    return dataclasses.replace(reward, score=score)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
