"""Stack `boxed`: 1 only for the right answer in the last box."""

from lib.rewards.rollout import BoundedReward, Rollout


def boxed(rollout: Rollout) -> float:
    """1.0 when there is a box, and what is in the last one is right."""
    return float(rollout.strict_ok)


REWARDS = {"boxed": BoundedReward(boxed, (0.0, 1.0), marks=())}
