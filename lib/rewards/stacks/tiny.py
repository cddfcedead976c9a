"""Stack `tiny`: form, and right answer in that form, each 0 or 1."""

from lib.rewards.rollout import BoundedReward, Rollout


def format_reward(rollout: Rollout) -> float:
    """Return 1.0 if the whole completion has the required form."""
    return float(rollout.format_ok)


def answer_reward(rollout: Rollout) -> float:
    """Return 1.0 if the answer is right and the whole completion has the required form."""
    return float(rollout.strict_ok)


REWARDS = {
    "format": BoundedReward(format_reward, (0.0, 1.0)),
    "answer": BoundedReward(answer_reward, (0.0, 1.0)),
}
