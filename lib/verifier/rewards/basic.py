"""Form and answer as 0 or 1: stack `tiny`, and stack `r1_zero` where one counts only with both."""

from lib.verifier.grading import has_form, r1_zero_reward_fn
from lib.verifier.rewards.base import Rollout


def format_reward(rollout: Rollout) -> float:
    """1.0 when the completion has the required form as a whole."""
    return float(has_form(rollout.completion, prompt_format=rollout.prompt_format))


def answer_reward(rollout: Rollout) -> float:
    """1.0 when the answer is right, in the required form or not."""
    return float(rollout.grade.answer_ok)


def r1_zero(rollout: Rollout) -> float:
    """1.0 when the strict form holds and the answer is right."""
    return r1_zero_reward_fn(rollout.completion, rollout.reference)["reward"]
