"""Completions scored together: by functions of a `Rollout`, and by those with TRL's signature.

TRL's is `(prompts, completions, *, completion_ids, **columns) -> list`, one value per completion:
completions are chat messages (or texts), columns those of the dataset, and `trainer_state`,
`log_metric` and `log_extra` come with them. It is at the edge only: for TRL's trainer, and for
functions of one's own.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from lib.errors import UserError
from lib.plugins import is_plugin, label
from lib.prompts.base import PromptFormat
from lib.rewards.registry import load_reward, own_reward
from lib.rewards.rollout import BoundedReward, Rollout, as_messages, completion_text
from lib.verifier.extract import as_text

RewardFn = Callable[..., Sequence[float | None]]
"""TRL's signature; None says that a function does not apply to a completion."""

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


class RolloutReward:
    """A reward of rollouts by its name, which TRL may call too."""

    def __init__(self, name: str, reward: BoundedReward, grading: Grading) -> None:
        self.__name__, self.score, self.grading = label(name), reward.score, grading
        reward.range(grading.settings)
        marks, wanted = grading.prompt_format.marks, reward.marks
        if wanted not in (None, len(marks), marks):
            what = " ".join(wanted) if isinstance(wanted, tuple) else f"{wanted} tags"
            raise UserError(
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
) -> list[Sequence[float | None]]:
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
        else list(function(**arguments))
        for function in functions
    ]


def accuracy(rollouts: Sequence[Rollout]) -> float:
    """Share of the rollouts whose answer is right."""
    return sum(rollout.answer_ok for rollout in rollouts) / len(rollouts)
