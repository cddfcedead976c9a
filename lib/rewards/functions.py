"""Reward functions by their names in params: those of the stacks, and plugins.

A stack is a named set of rewards; its file is imported only when it is named, or when a reward is
named without its stack. A reward is a function of a `Rollout`. TRL's trainer and plugins may use
TRL's signature instead, `(prompts, completions, *, completion_ids, **columns) -> list`, with one
value per completion: completions are then chat messages or texts, and columns the dataset's, with
`trainer_state`, `log_metric` and `log_extra`.
"""

import dataclasses
import importlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

from lib.core.errors import UserError
from lib.core.plugins import guarded, is_plugin, label, load_plugin
from lib.prompts import Message, PromptFormat
from lib.rewards.rollout import BoundedReward, Rollout, judged_metrics
from reckon_verifier.extract import as_text

# File names and no imports: a run imports only its own stacks, so DVC re-runs only what uses them.
STACKS = tuple(sorted(file.stem for file in Path(__file__).parent.glob("stacks/[!_]*.py")))

UNBOUNDED = (-math.inf, math.inf)

RewardFn = Callable[..., list[float]]
"""TRL's signature: (prompts, completions, **columns) → one reward per completion."""

OPTIONAL_COLUMNS = ("problem", "tags", "completion_ids")
"""Columns in a call from TRL that a `Rollout` has."""


def rewards_of(stack: str) -> tuple[str, ...]:
    """List the rewards of a stack in the order of the weights: `tiny:format`, `tiny:answer`."""
    return tuple(f"{stack}:{name}" for name in _rewards(stack))


def _rewards(stack: str) -> dict[str, BoundedReward]:
    module: Any = importlib.import_module(f"lib.rewards.stacks.{stack}")
    return dict(module.REWARDS)


def reward_names() -> list[str]:
    """List the names of all rewards, without their stacks; imports every stack."""
    return [name for stack in STACKS for name in _rewards(stack)]


def load_reward(name: str) -> BoundedReward:
    """Return the reward `name`.

    "tiny:format" is the reward `format` of the stack `tiny`. A bare "format" is searched in all
    stacks. `plugins/rewards/file.py:name` is a plugin, without bounds if it is a plain function.

    Raises:
        UserError: no stack has it; lists the known rewards.
    """
    if is_plugin(name):
        plugin = load_plugin(name)
        return plugin if isinstance(plugin, BoundedReward) else BoundedReward(plugin, UNBOUNDED)
    stack, _, bare = name.rpartition(":")
    for each in [stack] if stack else STACKS:
        if reward := _rewards(each).get(bare):
            return reward
    known = ", ".join(reward_names())
    raise UserError(f"reward.extra: no reward `{bare}`; there are {known}")


def stack_range(
    names: Sequence[str], weights: Sequence[float], **settings: Any
) -> tuple[float, float]:
    """Return bounds of the weighted sum of rewards; infinite if a plugin's reward has none.

    They may be wider than the true range, since rewards of one completion depend on each other.

    Raises:
        UserError: an unknown name, or a setting that a reward needs is missing.
    """
    lowest = highest = 0.0
    for name, weight in zip(names, weights, strict=True):
        bounds = load_reward(name).range(settings)
        # A negative weight swaps the bounds; 0 · ∞ is NaN.
        low, high = sorted(weight * bound for bound in bounds) if weight else (0.0, 0.0)
        lowest, highest = lowest + low, highest + high
    return lowest, highest


class FormatError(UserError):
    """A reward reads other tags than the prompt format has."""


class RolloutReward:
    """A named reward with two ways to call it: `score(rollout)`, or TRL's signature.

    Args:
        judge: builds the `Rollout` of a completion, the same one in an equal call: TRL calls the
            reward functions one by one, and each completion is judged once.
    """

    def __init__(self, name: str, reward: BoundedReward, judge: Callable[..., Rollout]) -> None:
        # TRL names its columns after `__name__`: rewards/<name>/mean.
        self.__name__, self.score, self.judge = label(name), reward.score, judge

    def __call__(
        self,
        prompts: Any = None,
        completions: Sequence[Any] = (),
        *,
        reference: Sequence[Any] | None = None,
        reference_answer: Sequence[Any] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float]:
        """Return the reward of each completion of a batch, and log `judged_metrics` of the batch.

        Args:
            reference, reference_answer: the right answers, under either name.
            columns: `problem`, `tags` and `completion_ids` are read.

        Raises:
            UserError: the references are missing, or not as many as completions.
        """
        references = reference_answer if reference is None else reference
        if references is None or len(references) != len(completions):
            raise UserError(
                "reward: the dataset has no column `reference` with one right answer a completion; "
                "`prepare` writes it: run `dvc repro prepare`"
            )
        optional = [columns.get(name) or repeat(None) for name in OPTIONAL_COLUMNS]
        rollouts = [
            self.judge(
                completion_text(completion),
                reference=as_text(right),
                problem=problem,
                tags=tuple(tags or ()),
                token_ids=None if token_ids is None else tuple(token_ids),
            )
            for completion, right, problem, tags, token_ids in zip(
                completions, references, *optional, strict=False
            )
        ]
        # TRL averages what a step's functions log under one name.
        if log_metric and rollouts:
            for name, value in judged_metrics(rollouts).items():
                log_metric(name, value)
        return list(map(self.score, rollouts))


def reward_function(
    name: str,
    *,
    judge: Callable[..., Rollout],
    prompt_format: PromptFormat,
    settings: Mapping[str, Any],
) -> RewardFn:
    """Return the named reward as a `RolloutReward`, or a plugin's function with TRL's signature.

    Raises:
        UserError: an unknown name, a plugin that is no function, or a missing setting.
        FormatError: the prompt format has other tags than the reward reads.
    """
    reward = load_reward(name)
    if is_plugin(name):
        if not callable(reward.score):
            raise UserError(f"{name}: expected a function or a BoundedReward")
        if "completions" in inspect.signature(reward.score).parameters:
            return _checked_batch(name, reward.score)
        reward = dataclasses.replace(reward, score=_checked(name, reward.score))
    # Called for its error: a missing setting ends the run before training.
    reward.range(settings)
    # The four tags, () for a format with a box.
    marks, expected = prompt_format.marks, reward.marks
    if expected is not None and expected not in (len(marks), marks):
        described = " ".join(expected) if isinstance(expected, tuple) else f"{expected} tags"
        raise FormatError(
            f"reward `{label(name)}` reads {described or 'a box'}, and prompt.format "
            f"`{prompt_format.name}` has {' '.join(marks) or 'a box'}: change one"
        )
    return RolloutReward(name, reward, judge)


def _checked(name: str, function: Callable[[Rollout], Any]) -> Callable[[Rollout], float]:
    """Wrap a plugin's function of a `Rollout`: errors and values that are no number name it."""

    def score(rollout: Rollout) -> float:
        inputs = repr(rollout.completion[:60])
        with guarded(name, inputs=inputs):
            value = float(function(rollout))
        return _finite([value], name, inputs)[0]

    return score


def _checked_batch(name: str, function: Callable[..., Any]) -> RewardFn:
    """Wrap a plugin's function with TRL's signature, in which None ("does not apply") becomes 0."""

    # TRL's trainer passes the column `tags`, our trainer does not.
    def score(completions: Sequence[Any], *, tags: object = None, **columns: Any) -> list[float]:
        messages = [as_messages(completion_text(each)) for each in completions]
        inputs = f"{len(messages)} completions"
        with guarded(name, inputs=inputs):
            values = function(completions=messages, **columns)
            values = [0.0 if value is None else float(value) for value in values]
        if len(values) != len(messages):
            raise UserError(f"{name}: {len(values)} values for {inputs}; expected one for each")
        return _finite(values, name, inputs)

    score.__name__ = label(name)
    return score


def _finite(values: list[float], name: str, inputs: str) -> list[float]:
    for value in values:
        if not math.isfinite(value):
            raise UserError(f"{name}: gave {value} for {inputs}; expected a finite number")
    return values


def completion_text(completion: Any) -> str:
    """Return the text of a completion from TRL: a text, or chat messages (the last one's text)."""
    if isinstance(completion, str):
        return completion
    return as_text(completion[-1]["content"]) if completion else ""


def as_messages(text: str) -> list[Message]:
    """Return a completion as TRL's chat messages: one turn of the assistant."""
    return [{"role": "assistant", "content": text}]
