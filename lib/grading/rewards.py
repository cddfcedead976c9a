"""The rewards that params name, for training and evaluation alike."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from lib.params.training import Reward
from lib.prompts import PromptFormat
from lib.verifier import grade
from lib.verifier.rewards import STACKS, RewardFn, build_rewards
from lib.verifier.rewards.base import completion_text


def rewards_of(
    reward: Reward, *, prompt_format: PromptFormat, max_completion_tokens: int
) -> list[RewardFn]:
    """The functions of the stack, then the extra ones; one for each of `reward.weights`."""
    return build_rewards(
        (*STACKS[reward.stack], *reward.extra),
        prompt_format=prompt_format,
        **reward.settings(max_completion_tokens=max_completion_tokens),
    )


def logging_accuracy(reward: RewardFn, *, prompt_format: PromptFormat, name: str) -> RewardFn:
    """`reward` that also logs the share of right answers, whatever it rewards.

    Args:
        name: column of the curve. TRL averages what it is given through `log_metric` over a step.
    """

    @functools.wraps(reward)
    def scored(
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] = (),
        *,
        reference: Sequence[str] = (),
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float]:
        rewards = reward(prompts, completions, reference=reference, **columns)
        if log_metric and rewards:
            problems = columns.get("problem") or [None] * len(rewards)
            right = [
                grade(
                    completion_text(text),
                    reference=right_answer,
                    prompt_format=prompt_format,
                    problem=problem,
                )
                for text, right_answer, problem in zip(
                    completions, reference, problems, strict=True
                )
            ]
            log_metric(name, sum(graded.answer_ok for graded in right) / len(right))
        return rewards

    return scored
