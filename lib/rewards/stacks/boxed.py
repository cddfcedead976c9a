"""Stack `boxed`: 1 only for the right answer in the last box."""

from lib.rewards.rollout import BoundedReward, Rollout


def boxed(rollout: Rollout) -> float:
    """Return 1.0 if there is a box and the last one holds the right answer."""
    return float(rollout.strict_ok)


# (): needs a format without tags, with its answer in a box.
REWARDS = {"boxed": BoundedReward(boxed, (0.0, 1.0), marks=())}
