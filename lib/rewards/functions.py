"""Find reward functions by name, in stacks and plugins, and score completions with them.

A stack is a named set of rewards; its file is imported only when it is named, or when a reward is
named without its stack. Rewards are functions of a `Rollout`. TRL's trainer and plugins may use
TRL's signature instead, `(prompts, completions, *, completion_ids, **columns) -> list`, with one
value per completion. Completions are then chat messages or texts. Columns are the dataset's, with
`trainer_state`, `log_metric` and `log_extra`.
"""

import dataclasses
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lib.artifacts.completions import GeneratedCompletion
from lib.core.errors import UserError
from lib.core.plugins import guarded, is_plugin, label, load_plugin
from lib.prompts import Message, PromptFormat
from lib.rewards.rollout import BoundedReward, Rollout
from reckon_verifier.extract import as_text
from reckon_verifier.rules import INEXACT

# File names and no imports: without `reward.extra`, a run imports only its own stacks, so DVC
# re-runs only what uses them.
STACKS = tuple(sorted(file.stem for file in Path(__file__).parent.glob("stacks/[!_]*.py")))

UNBOUNDED = (-math.inf, math.inf)

RewardFn = Callable[..., list[float]]
"""TRL's signature: (prompts, completions, **columns) → one reward per completion."""

ANSWER_ACCURACY = "answer_accuracy"
"""Column of the training curve: the share of completions with a right answer, whatever their
reward."""

DECIDED_BY = "reward/decided_by/"
"""Prefix of columns of the training curve, one per step of the verifier in `INEXACT` (evidence, not
proof): its share of the right answers."""

OPTIONAL_COLUMNS = {
    "prompts": "prompt",
    "problem": "problem",
    "tags": "tags",
    "completion_ids": "token_ids",
}
"""Optional columns in a call from TRL → fields of a `Rollout`."""


class Grading:
    """Judges completions and computes their rewards, by one set of rules.

    Args:
        names: names of the F rewards: `stack:name` as from `rewards_of`, a bare `name`, or
            `plugins/rewards/file.py:name`.
        weights: [F] weight of each reward in their sum; () for 1 each.
        prompt_format: the format of the prompts.
        settings: see `Rollout`.

    Raises:
        UserError: an unknown name (lists the known ones), a missing setting, or a prompt format
            without the tags that a reward counts.
    """

    def __init__(
        self,
        names: Sequence[str] = (),
        weights: Sequence[float] = (),
        *,
        prompt_format: PromptFormat,
        **settings: Any,
    ) -> None:
        # settings: those of the rewards (params: `reward`), and `max_completion_tokens`.
        self.prompt_format, self.settings = prompt_format, settings
        # [F] each. Without weights, the total is the plain sum of the rewards.
        self.weights = weights or [1.0] * len(names)
        self.rewards: list[RewardFn] = [self._trl_function(name) for name in names]
        # Arguments and rollouts of TRL's last batch. TRL calls the F reward functions one by one;
        # they share these rollouts, so that each completion is judged once.
        self._arguments: tuple[object, ...] = ()
        self._rollouts: list[Rollout] = []

    def _trl_function(self, name: str) -> RewardFn:
        """Return the named reward as a function with TRL's signature."""
        loaded = load_reward(name)
        # A plugin is wrapped, so that its values are checked; one with TRL's signature is then a
        # function, and no `BoundedReward`.
        reward = checked_plugin(name, loaded) if is_plugin(name) else loaded
        # A `BoundedReward` is computed from one `Rollout`; `RolloutReward` adds TRL's signature.
        return RolloutReward(name, reward, self) if isinstance(reward, BoundedReward) else reward

    def rollout(self, completion: str, **fields: Any) -> Rollout:
        """Build the `Rollout` of a completion; its verdict is computed when first read.

        Args:
            fields: other fields of the `Rollout`, such as `reference` and `problem`.
        """
        return Rollout(
            completion=completion,
            prompt_format=self.prompt_format,
            settings=self.settings,
            **fields,
        )

    def judge(self, completions: Sequence[GeneratedCompletion], **fields: Any) -> list[Rollout]:
        """Build the `Rollout`s of one problem's completions.

        Args:
            fields: further fields, the same for all, such as `reference` and `problem`.
        """
        return [
            self.rollout(
                completion.text,
                token_ids=completion.token_ids,
                finish=completion.finish,
                log_probs=completion.log_probs,
                **fields,
            )
            for completion in completions
        ]

    def score(self, rollouts: Sequence[Rollout], **columns: Any) -> None:
        """Set `rewards` and `reward` (their weighted sum) of B rollouts.

        Args:
            columns: further keyword arguments for plugins with TRL's signature: lists of B values,
                and TRL's `trainer_state`, `log_metric` and `log_extra`.
        """
        # Keyword arguments for functions with TRL's signature, each a list of B values. The names
        # are those of TRL's GRPOTrainer, and of its examples on GSM8K: these have the reference and
        # its solution under `reference_answer` and `reference_solution`. The solution is '' unless
        # `columns` has it, as in training.
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
        # [F][B]: one list per reward function.
        values: list[list[float]] = []
        for function in self.rewards:
            if isinstance(function, RolloutReward):
                # Not through TRL's signature, which would judge the completions again.
                values.append([function.score(rollout) for rollout in rollouts])
            else:
                # TRL leaves None ("does not apply") out of the sum: 0 gives the same total.
                values.append([value or 0.0 for value in function(**arguments)])
        for index, rollout in enumerate(rollouts):
            rollout.rewards = tuple(float(of_function[index]) for of_function in values)
            weighted = zip(self.weights, rollout.rewards, strict=True)
            rollout.reward = sum(weight * value for weight, value in weighted)

    def by_name(self, rollout: Rollout) -> dict[str, float]:
        """Return a scored rollout's rewards as {name of the reward function: value}."""
        names = (reward.__name__ for reward in self.rewards)
        return dict(zip(names, rollout.rewards, strict=True))

    def rollouts(
        self,
        completions: Sequence[Any],
        *,
        reference: Sequence[Any] | None = None,
        reference_answer: Sequence[Any] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[Rollout]:
        """Return one rollout per completion of TRL's batch; log `judged_metrics` of a new batch.

        TRL calls each reward function with the same batch. The first call builds the rollouts, and
        later calls get the same ones.

        Args:
            completions: texts, or lists of chat messages.
            reference, reference_answer: the right answers, under either name.
            log_metric: TRL's function for a named number; None logs nothing.
            columns: further columns of the batch. `problem`, `tags` and `completion_ids` are read,
                others ignored.

        Raises:
            UserError: the references are missing, or not as many as completions.
        """
        reference = reference_answer if reference is None else reference
        # None for an optional column that was not passed. Copies, since a caller may change a list
        # and call again.
        batch = (completions, reference, *map(columns.get, OPTIONAL_COLUMNS))
        arguments = tuple(None if column is None else [*column] for column in batch)
        # TRL passes the same batch to one function after another: its rollouts are built already.
        if self._arguments == arguments:
            return self._rollouts
        if reference is None or len(reference) != len(completions):
            raise UserError(
                "reward: the dataset has no column `reference` with one right answer a completion; "
                "`prepare` writes it: run `dvc repro prepare`"
            )
        # Field of `Rollout` → its B values, for the optional columns in this call.
        optional = {
            field: columns[name] for name, field in OPTIONAL_COLUMNS.items() if columns.get(name)
        }
        self._arguments = arguments
        self._rollouts = [
            self.rollout(
                completion_text(completion),
                reference=as_text(right),
                # One completion's values of the optional fields.
                **dict(zip(optional, values, strict=True)),
            )
            for completion, right, *values in zip(
                completions, reference, *optional.values(), strict=True
            )
        ]
        # Reached once per batch: for the other reward functions, the method has returned above.
        if log_metric and completions:
            for name, value in judged_metrics(self._rollouts).items():
                log_metric(name, value)
        return self._rollouts


class FormatError(UserError):
    """A reward reads other tags than the prompt format has."""


class RolloutReward:
    """A named reward with two ways to call it: `score(rollout)`, or TRL's signature.

    Raises:
        UserError: a setting that the reward needs is missing.
        FormatError: the prompt format has other tags than the reward reads.
    """

    def __init__(self, name: str, reward: BoundedReward, grading: Grading) -> None:
        # TRL names its columns after `__name__`: rewards/<name>/mean. `label` returns the part of
        # "tiny:format" after the colon.
        self.__name__, self.score, self.grading = label(name), reward.score, grading
        # Called for its error: a missing setting ends the run before training.
        reward.range(grading.settings)
        # The prompt format's four tags, () for a format with a box.
        marks = grading.prompt_format.marks
        # None: any format; 4: any four tags; a tuple: exactly these tags, () for a box.
        expected = reward.marks
        if expected is not None and expected not in (len(marks), marks):
            described = " ".join(expected) if isinstance(expected, tuple) else f"{expected} tags"
            raise FormatError(
                f"reward `{self.__name__}` reads {described or 'a box'}, and prompt.format "
                f"`{grading.prompt_format.name}` has {' '.join(marks) or 'a box'}: change one"
            )

    def __call__(
        self, prompts: Any = None, completions: Sequence[Any] = (), **columns: Any
    ) -> list[float]:
        """Return the reward of each completion of a batch, called with TRL's signature."""
        return list(map(self.score, self.grading.rollouts(completions, prompts=prompts, **columns)))


def judged_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return the answer accuracy, and the share of right answers that each inexact step accepted.

    {"answer_accuracy": 0.5, "reward/decided_by/rounding": 0.1}

    The verifier accepts an answer by proof or, in the steps `INEXACT`, on evidence. A step that
    accepted no answer has no entry: a policy with plain numbers has the accuracy only.
    """
    # The name of the step that decided, for each right answer.
    steps = [rollout.verdict.decided_by for rollout in rollouts if rollout.answer_ok]
    shares = {
        f"{DECIDED_BY}{name}": steps.count(name) / len(steps) for name in INEXACT if name in steps
    }
    return {ANSWER_ACCURACY: len(steps) / len(rollouts), **shares}


def completion_text(completion: Any) -> str:
    """Return the text of a completion from TRL: a text, or chat messages (the last one's text)."""
    if isinstance(completion, str):
        return completion
    return as_text(completion[-1]["content"]) if completion else ""


def as_messages(text: str) -> list[Message]:
    """Return a completion as TRL's chat messages: one turn of the assistant."""
    return [{"role": "assistant", "content": text}]


def rewards_of(stack: str) -> tuple[str, ...]:
    """List the rewards of a stack in the order of the weights: `tiny:format`, `tiny:answer`."""
    return tuple(f"{stack}:{name}" for name in _rewards(stack))


def _rewards(stack: str) -> dict[str, BoundedReward]:
    """Import the stack's file and return its rewards by name."""
    rewards: dict[str, BoundedReward] = importlib.import_module(
        f"lib.rewards.stacks.{stack}"
    ).REWARDS
    return rewards


def reward_names() -> list[str]:
    """List the names of all rewards, without their stacks; imports every stack."""
    return [name for stack in STACKS for name in _rewards(stack)]


def load_reward(name: str) -> BoundedReward:
    """Return the reward `name`.

    "tiny:format" is the reward `format` of the stack `tiny`. A bare "format" is searched in all
    stacks, which imports every one. `plugins/rewards/file.py:name` is a plugin; its bounds are
    infinite if it is a function and no `BoundedReward`.

    Raises:
        UserError: no stack has it; lists the known rewards.
    """
    if is_plugin(name):
        plugin = load_plugin(name)
        return plugin if isinstance(plugin, BoundedReward) else BoundedReward(plugin, UNBOUNDED)
    # `stack` is '' for a bare name.
    stack, _, bare = name.rpartition(":")
    for each in [stack] if stack else STACKS:
        # Reward's name → reward.
        rewards = _rewards(each)
        if bare in rewards:
            return rewards[bare]
    known = ", ".join(reward_names())
    raise UserError(f"reward.extra: no reward `{bare}`; there are {known}")


def stack_range(
    names: Sequence[str], weights: Sequence[float], **settings: Any
) -> tuple[float, float]:
    """Return bounds of the weighted sum of rewards: the sums of their smallest and largest values.

    The bounds are infinite if a plugin's reward has none. They may be wider than the true range,
    since rewards of one completion depend on each other.

    Raises:
        UserError: an unknown name, or a setting that a reward needs is missing.
    """
    lowest = highest = 0.0
    for name, weight in zip(names, weights, strict=True):
        # (smallest, largest) value of this reward.
        bounds = load_reward(name).range(settings)
        # Sorted, since a negative weight swaps the bounds. A weight of 0 needs its own case: for an
        # unbounded reward, 0 · ∞ is NaN.
        low, high = sorted(weight * bound for bound in bounds) if weight else (0.0, 0.0)
        lowest, highest = lowest + low, highest + high
    return lowest, highest


def checked_plugin(name: str, reward: BoundedReward) -> BoundedReward | RewardFn:
    """Wrap the reward of the plugin `name`, so that each call is checked.

    The plugin's function, `reward.score`, is of one of two kinds: with a parameter `completions` it
    has TRL's signature and scores a batch; else it is a function from a `Rollout` to a number.

    Returns:
        For TRL's signature, a function with it (`score_all`), in which None counts as 0; else a
        `BoundedReward` (with `score`). Both raise UserError on a call if the plugin raises or
        returns no finite numbers.

    Raises:
        UserError: the plugin is no function.
    """
    function: Callable[..., Any] = reward.score
    if not callable(function):
        raise UserError(f"{name}: expected a function or a BoundedReward, got {function!r}")

    def score(rollout: Rollout) -> float:
        """Return the plugin's reward of one rollout."""
        inputs = _excerpt(rollout.completion)
        # `guarded` turns any exception of the plugin into a UserError with its name and `inputs`.
        with guarded(name, inputs=inputs):
            value = function(rollout)
        # As a float; raises UserError for anything else, such as NaN.
        return _finite(value, name=name, inputs=inputs)

    def score_all(
        completions: Sequence[Any],
        *,
        # The problem's tags, dropped: TRL's trainer passes them with the dataset's other columns,
        # our trainer does not. A function of a `Rollout` can read `rollout.tags`.
        tags: object = None,
        **columns: Any,
    ) -> list[float]:
        """Return the plugin's rewards of a batch, one per completion; TRL's signature."""
        messages = [as_messages(completion_text(completion)) for completion in completions]
        # `inputs` describes the batch in errors. `_excerpt` cuts a text to 60 characters.
        first = _excerpt(messages[0][0]["content"]) if messages else "of none"
        inputs = f"{len(messages)} completions, the first {first}, and the columns "
        inputs += ", ".join(columns)
        with guarded(name, inputs=inputs):
            values = list(function(completions=messages, **columns))
        if len(values) != len(messages):
            raise UserError(f"{name}: {len(values)} values for {inputs}; expected one for each")
        # TRL leaves None ("does not apply") out of the sum of rewards: 0 gives the same total.
        return [
            0.0 if value is None else _finite(value, name=name, inputs=inputs) for value in values
        ]

    # TRL names its columns after `__name__`: rewards/<name>/mean. `label` returns the part of the
    # plugin's name after the colon.
    score_all.__name__ = label(name)
    # TRL passes `completions` by name; a function of a `Rollout` has no such parameter.
    if "completions" in inspect.signature(function).parameters:
        return score_all
    return dataclasses.replace(reward, score=score)


def _finite(value: Any, *, name: str, inputs: str) -> float:
    """Return the value that the plugin `name` gave for `inputs` as a float.

    Raises:
        UserError: it is no finite number.
    """
    # NumPy's and torch's scalars, np.bool_ too.
    if not isinstance(value, int | float) and getattr(value, "ndim", None) == 0:
        value = value.item()
    # Not math.isfinite, which raises for an integer beyond the floats.
    if isinstance(value, int | float) and abs(value) <= sys.float_info.max:
        return float(value)
    shown = "an integer beyond a float's range" if isinstance(value, int) else repr(value)
    raise UserError(f"{name}: gave {shown} for {inputs}; expected a finite number")


def _excerpt(text: str) -> str:
    """Return at most 60 characters of `text`, quoted for an error message."""
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
