"""Rewards from `plugins/` (`lib.plugins`), held to what a reward promises."""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from lib.errors import UserError
from lib.plugins import in_words, label, load_plugin
from lib.prompts.base import PromptFormat
from lib.verifier.rewards.base import (
    BoundedReward,
    RewardFn,
    RewardSettings,
    Rollout,
    as_trl,
    completion_text,
)

UNBOUNDED = (-math.inf, math.inf)


def own_reward(name: str, *, prompt_format: PromptFormat, settings: RewardSettings) -> RewardFn:
    """The plugin called `name`, as TRL calls it.

    It is a `BoundedReward`, a function from a `Rollout` to a number, or a function with TRL's
    signature, which its parameter `completions` tells. That one gets chat messages and the columns
    `prompts`, `completion_ids`, `reference` and `problem`; None for a completion, which TRL takes
    as "does not apply", adds nothing.

    Raises:
        UserError: it is none of them; when it is called, it raises or gives anything but numbers.
    """
    own = load_plugin(name)
    reward = own if isinstance(own, BoundedReward) else BoundedReward(own, UNBOUNDED)
    if not callable(reward.score):
        raise UserError(f"{name}: expected a function or a BoundedReward, got {own!r}")
    if "completions" in inspect.signature(reward.score).parameters:
        return _with_trls_signature(name, reward.score)

    @functools.wraps(reward.score)
    def score(rollout: Rollout) -> float:
        return _numbers(name, reward.score, rollout, inputs=_shown(rollout.completion))[0]

    checked = dataclasses.replace(reward, score=score)
    return as_trl(label(name), checked, prompt_format=prompt_format, settings=settings)


def own_range(name: str, settings: RewardSettings) -> tuple[float, float]:
    """Smallest and largest value, infinite where the plugin does not say."""
    own = load_plugin(name)
    return own.range(settings) if isinstance(own, BoundedReward) else UNBOUNDED


def _with_trls_signature(name: str, own: Callable[..., Any]) -> RewardFn:
    @functools.wraps(own)
    def score_all(
        prompts: Sequence[Any] | None = None, completions: Sequence[Any] = (), **columns: Any
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
