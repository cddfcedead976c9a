"""Judge completions and compute their rewards, by one set of rules."""

import functools
from collections.abc import Sequence
from typing import Any, Protocol

from lib.artifacts.completions import GeneratedCompletion
from lib.prompts import PromptFormat
from lib.rewards.functions import RolloutReward, as_messages, reward_function
from lib.rewards.rollout import Rollout


class RewardSettings(Protocol):
    """The section `reward` of params."""

    @property
    def names(self) -> Sequence[str]: ...
    @property
    def weights(self) -> Sequence[float]: ...
    def settings(self, *, max_completion_tokens: int) -> dict[str, Any]: ...
    def model_dump(self) -> dict[str, Any]: ...


class Grading:
    """The rules: a prompt format, and F rewards with their weights.

    Args:
        names: the F rewards, as `load_reward` reads them.
        weights: [F] weight of each reward in their sum; () for 1 each.
        settings: see `Rollout`.

    Raises:
        UserError: an unknown name, a missing setting, or (`FormatError`) a prompt format without
            the tags that a reward reads.
    """

    def __init__(
        self,
        names: Sequence[str] = (),
        weights: Sequence[float] = (),
        *,
        prompt_format: PromptFormat,
        **settings: Any,
    ) -> None:
        self.prompt_format, self.settings = prompt_format, settings
        self.weights = weights or [1.0] * len(names)
        # For TRL, which calls the functions one by one: the last rollouts, each judged once.
        judge = functools.lru_cache(maxsize=4096)(self.rollout)
        self.rewards = [
            reward_function(name, judge=judge, prompt_format=prompt_format, settings=settings)
            for name in names
        ]

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
        """Build the `Rollout`s of one problem's completions, with the same `fields` for all."""
        return [
            self.rollout(
                completion.text,
                token_ids=completion.token_ids,
                finish=completion.finish,
                log_probs=completion.log_probs,
                sampled=completion.sampled,
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
        references = [rollout.reference for rollout in rollouts]
        # TRL's names, and those of its examples on GSM8K, where the solution is '' unless `columns`
        # has it, as in training.
        arguments = {
            "prompts": [rollout.prompt for rollout in rollouts],
            "completions": [as_messages(rollout.completion) for rollout in rollouts],
            "completion_ids": [list(rollout.token_ids or ()) for rollout in rollouts],
            "reference": references,
            "reference_answer": references,
            "reference_solution": [""] * len(rollouts),
            "problem": [rollout.problem for rollout in rollouts],
            **columns,
        }
        # [F][B]; TRL leaves None ("does not apply") out of the sum, which 0 does too.
        values = [
            list(map(function.score, rollouts))
            if isinstance(function, RolloutReward)
            else [value or 0.0 for value in function(**arguments)]
            for function in self.rewards
        ]
        for index, rollout in enumerate(rollouts):
            rollout.rewards = tuple(float(of_function[index]) for of_function in values)
            weighted = zip(self.weights, rollout.rewards, strict=True)
            rollout.reward = sum(weight * value for weight, value in weighted)

    def by_name(self, rollout: Rollout) -> dict[str, float]:
        names = (reward.__name__ for reward in self.rewards)
        return dict(zip(names, rollout.rewards, strict=True))
