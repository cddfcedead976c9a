"""Rewards by name, of stacks and of plugins, and how completions are scored together.

A stack's file is imported when it is named. Rewards are functions of a `Rollout`; TRL's signature
is at the edge only, for TRL's trainer and for functions of one's own:
`(prompts, completions, *, completion_ids, **columns) -> list`, one value per completion, where
completions are chat messages (or texts), columns those of the dataset, and `trainer_state`,
`log_metric` and `log_extra` come with them.
"""

import dataclasses
import importlib
import inspect
import math
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lib.core.errors import UserError
from lib.core.plugins import in_words, is_plugin, label, load_plugin
from lib.prompts.formats import PromptFormat
from lib.rewards.rollout import BoundedReward, Rollout, as_messages, completion_text
from lib.verifier.extract import as_text

STACKS = tuple(sorted(file.stem for file in Path(__file__).parent.glob("stacks/[!_]*.py")))

UNBOUNDED = (-math.inf, math.inf)

RewardFn = Callable[..., list[float]]
"""TRL's signature."""

ANSWER_ACCURACY = "answer_accuracy"
"""Column of the curve with the share of completions whose answer is right, whatever is rewarded."""

FIELDS = {"problem": "problem", "tags": "tags", "completion_ids": "token_ids"}
"""Columns that need not be there, and what a `Rollout` calls them."""


class Grading:
    """How completions are judged, and what they earn.

    Args:
        names: of rewards, such as those of `rewards_of("tiny")`, a bare `answer`, or
            `plugins/rewards/file.py:name`.
        weights: one for each of them.
        prompt_format: the format that the prompts ask for.
        settings: see `Rollout`.

    Raises:
        UserError: a name that no file has (lists those that there are), a setting that is needed
            and not set, a prompt format without the tags that are counted.
    """

    def __init__(
        self,
        names: Sequence[str] = (),
        weights: Sequence[float] = (),
        *,
        prompt_format: PromptFormat,
        **settings: Any,
    ) -> None:
        self.prompt_format, self.settings, self.weights = prompt_format, settings, weights
        self.rewards: list[RewardFn] = [self._function(name) for name in names]
        self._columns: tuple[object, ...] = ()
        self._rollouts: list[Rollout] = []

    def _function(self, name: str) -> RewardFn:
        reward = own_reward(name) if is_plugin(name) else load_reward(name)
        return RolloutReward(name, reward, self) if isinstance(reward, BoundedReward) else reward

    def rollout(self, completion: str, **fields: Any) -> Rollout:
        """A completion to judge; `fields` are `Rollout`'s."""
        return Rollout(
            completion=completion,
            prompt_format=self.prompt_format,
            settings=self.settings,
            **fields,
        )

    def rollouts(
        self,
        completions: Sequence[Any],
        *,
        reference: Sequence[Any] | None = None,
        reference_answer: Sequence[Any] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[Rollout]:
        """One for each completion; of a new batch, the accuracy is logged.

        Args:
            reference, reference_answer: two names of the right answers.

        Raises:
            UserError: there is not one reference per completion.
        """
        reference = reference_answer if reference is None else reference
        told = (completions, reference, *map(columns.get, FIELDS))
        # TRL calls one function after another with the same lists: these are judged already.
        if self._columns and all(map(operator.is_, self._columns, told)):
            return self._rollouts
        if reference is None or len(reference) != len(completions):
            raise UserError(
                "reward: the dataset has no column `reference` with one right answer a completion; "
                "`prepare` writes it: run `dvc repro prepare`"
            )
        known = {field: columns[name] for name, field in FIELDS.items() if columns.get(name)}
        self._columns = told
        self._rollouts = [
            self.rollout(
                completion_text(text),
                reference=as_text(right),
                **dict(zip(known, values, strict=True)),
            )
            for text, right, *values in zip(completions, reference, *known.values(), strict=True)
        ]
        if log_metric and completions:
            log_metric(ANSWER_ACCURACY, accuracy(self._rollouts))
        return self._rollouts


class FormatError(UserError):
    """A reward that cannot read what the prompt format asks for."""


class RolloutReward:
    """A reward of rollouts by its name, which TRL may call too."""

    def __init__(self, name: str, reward: BoundedReward, grading: Grading) -> None:
        self.__name__, self.score, self.grading = label(name), reward.score, grading
        reward.range(grading.settings)
        marks, wanted = grading.prompt_format.marks, reward.marks
        if wanted not in (None, len(marks), marks):
            what = " ".join(wanted) if isinstance(wanted, tuple) else f"{wanted} tags"
            raise FormatError(
                f"reward `{self.__name__}` reads {what or 'a box'}, and prompt.format "
                f"`{grading.prompt_format.name}` has {' '.join(marks) or 'a box'}: change one"
            )

    def __call__(
        self, prompts: object = None, completions: Sequence[Any] = (), **columns: Any
    ) -> list[float]:
        """See the module."""
        return list(map(self.score, self.grading.rollouts(completions, **columns)))


def scores(
    functions: Sequence[RewardFn], rollouts: Sequence[Rollout], **columns: Any
) -> list[list[float]]:
    """[F] what each function gives the rollouts; `columns` are for those with TRL's signature.

    `reference_solution` is empty unless it is among them: completions that are graded hold none.
    """
    arguments = {
        "prompts": [rollout.prompt for rollout in rollouts],
        "completions": [as_messages(rollout.completion) for rollout in rollouts],
        "completion_ids": [list(rollout.token_ids or ()) for rollout in rollouts],
        "reference": [rollout.reference for rollout in rollouts],
        "reference_answer": [rollout.reference for rollout in rollouts],
        "reference_solution": [""] * len(rollouts),
        "problem": [rollout.problem for rollout in rollouts],
        **columns,
    }
    return [
        list(map(function.score, rollouts))
        if isinstance(function, RolloutReward)
        else function(**arguments)
        for function in functions
    ]


def accuracy(rollouts: Sequence[Rollout]) -> float:
    """Share of the rollouts whose answer is right."""
    return sum(rollout.answer_ok for rollout in rollouts) / len(rollouts)


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
        UserError: no stack has it; lists those that there are.
    """
    stack, _, bare = name.rpartition(":")
    for file in [stack] if stack else STACKS:
        if bare in _rewards(file):
            return _rewards(file)[bare]
    known = ", ".join(reward_names())
    raise UserError(f"reward.extra: no reward `{bare}`; there are {known}")


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

    def numbers(count: int, inputs: str, *rollout: Rollout, **columns: Any) -> list[float]:
        try:
            result: Any = reward.score(*rollout, **columns)
            values = [result] if rollout else [0.0 if value is None else value for value in result]
        except Exception as error:
            raise in_words(name, error, inputs=inputs) from error
        for value in values:
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise UserError(f"{name}: gave {value!r} for {inputs}; expected a finite number")
        if len(values) != count:
            raise UserError(f"{name}: {len(values)} values for {inputs}; expected one for each")
        return [float(value) for value in values]

    def score(rollout: Rollout) -> float:
        return numbers(1, _shown(rollout.completion), rollout)[0]

    def score_all(
        completions: Sequence[Any],
        *,
        tags: object = None,  # of the problem: a `Rollout` has them
        **columns: Any,
    ) -> list[float]:
        messages = [as_messages(completion_text(completion)) for completion in completions]
        first = _shown(messages[0][0]["content"]) if messages else "of none"
        inputs = f"{len(messages)} completions, the first {first}, and the columns "
        return numbers(len(messages), inputs + ", ".join(columns), completions=messages, **columns)

    score_all.__name__ = label(name)
    if "completions" in inspect.signature(reward.score).parameters:
        return score_all
    return dataclasses.replace(reward, score=score)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
