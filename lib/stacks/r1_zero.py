"""Stack `r1_zero`: 1 only for the strict form and the right answer together."""

from lib.verifier.grading import r1_zero_reward_fn
from lib.verifier.rewards.base import BoundedReward, Rollout


def r1_zero(rollout: Rollout) -> float:
    """1.0 when the strict form holds and the answer is right."""
    scores = r1_zero_reward_fn(rollout.completion, rollout.reference, problem=rollout.problem)
    return scores["reward"]


REWARDS = {"r1_zero": BoundedReward(r1_zero, (0.0, 1.0))}
