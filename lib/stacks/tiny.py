"""Stack `tiny`: form, and right answer in that form, each 0 or 1."""

from lib.verifier.grading import has_form
from lib.verifier.rewards.base import BoundedReward, Rollout


def format_reward(rollout: Rollout) -> float:
    """1.0 when the completion has the required form as a whole."""
    return float(has_form(rollout.completion, prompt_format=rollout.prompt_format))


def answer_reward(rollout: Rollout) -> float:
    """1.0 when the answer is right, and the completion has the required form as a whole."""
    return float(rollout.grade.strict_ok)


REWARDS = {
    "format": BoundedReward(format_reward, (0.0, 1.0)),
    "answer": BoundedReward(answer_reward, (0.0, 1.0)),
}
