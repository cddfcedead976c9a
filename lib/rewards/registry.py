"""Rewards by name: of the stacks, which are files imported when they are named, and of plugins."""

import dataclasses
import importlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.errors import UserError
from lib.plugins import in_words, is_plugin, label, load_plugin
from lib.prompts.base import PromptFormat
from lib.rewards.rollout import (
    Batch,
    BoundedReward,
    RewardFn,
    RewardSettings,
    Rollout,
    RolloutReward,
    completion_text,
)

UNBOUNDED = (-math.inf, math.inf)
_FILES = {file.stem for file in (Path(__file__).parent / "stacks").glob("*.py")} - {"__init__"}


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
    rewards: dict[str, BoundedReward] = importlib.import_module(
        f"lib.rewards.stacks.{stack}"
    ).REWARDS
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
    """Reward functions, in the order of `names`; each is called by its name.

    Args:
        names: such as those of `STACKS["tiny"]`, a bare `answer`, or `plugins/file.py:name`.
        prompt_format: the format that the prompts ask for.
        settings: fields of `RewardSettings`.

    Raises:
        UserError: a name that no file has (lists those that there are), a setting that is needed
            and not set, a prompt format without the tags that are counted.
    """
    batch = Batch(prompt_format, RewardSettings(**settings))
    return [
        own_reward(name, batch)
        if is_plugin(name)
        else RolloutReward(label(name), load_reward(name), batch)
        for name in names
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grading:
    """How completions are judged, and what they earn.

    Attributes:
        rewards: of `build_rewards`, or any functions with TRL's signature.
        weights: one for each of them.
    """

    prompt_format: PromptFormat
    rewards: Sequence[RewardFn] = ()
    weights: Sequence[float] = ()
    settings: RewardSettings = dataclasses.field(default_factory=RewardSettings)

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        weights: Sequence[float],
        *,
        prompt_format: PromptFormat,
        **settings: Any,
    ) -> "Grading":
        """By rewards that have these names; see `build_rewards`."""
        return cls(
            prompt_format=prompt_format,
            rewards=build_rewards(names, prompt_format=prompt_format, **settings),
            weights=weights,
            settings=RewardSettings(**settings),
        )

    def rollout(self, completion: str, **fields: Any) -> Rollout:
        """A completion to judge; `fields` are `Rollout`'s."""
        return Rollout(
            completion=completion,
            prompt_format=self.prompt_format,
            settings=self.settings,
            **fields,
        )


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


def own_reward(name: str, batch: Batch) -> RewardFn:
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
    if "completions" in inspect.signature(reward.score).parameters:
        return _with_trls_signature(name, reward.score)

    def score(rollout: Rollout) -> float:
        return _numbers(name, reward.score, rollout, inputs=_shown(rollout.completion))[0]

    return RolloutReward(label(name), dataclasses.replace(reward, score=score), batch)


def own_range(name: str, settings: RewardSettings) -> tuple[float, float]:
    """Smallest and largest value, infinite where the plugin does not say."""
    own = load_plugin(name)
    return own.range(settings) if isinstance(own, BoundedReward) else UNBOUNDED


def _with_trls_signature(name: str, own: Callable[..., Any]) -> RewardFn:
    def score_all(
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] = (),
        *,
        tags: object = None,
        **columns: Any,
    ) -> list[float]:
        texts = [completion_text(completion) for completion in completions]
        messages = [[{"role": "assistant", "content": text}] for text in texts]
        inputs = f"{len(texts)} completions, the first {_shown(texts[0]) if texts else 'of none'}"
        values = _numbers(
            name, own, inputs=inputs, prompts=prompts, completions=messages, **columns
        )
        if len(values) != len(texts):
            raise UserError(f"{name}: {len(values)} values for {inputs}; expected one for each")
        return values

    score_all.__name__ = score_all.__qualname__ = label(name)
    return score_all


def _numbers(
    name: str, own: Callable[..., Any], *arguments: Any, inputs: str, **columns: Any
) -> list[float]:
    """What `own` gives, as finite numbers; one where it gives no list."""
    try:
        result = own(*arguments, **columns)
    except Exception as error:
        raise in_words(name, error, inputs=inputs) from error
    values = list(result) if isinstance(result, Sequence) and columns else [result]
    values = [0.0 if value is None and columns else value for value in values]
    for value in values:
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise UserError(f"{name}: gave {value!r} for {inputs}; expected a finite number")
    return [float(value) for value in values]


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
