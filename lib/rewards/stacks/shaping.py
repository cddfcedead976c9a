"""Rewards that shape length and style, beyond right and wrong."""

import math
from collections.abc import Mapping
from typing import Any

from lib.rewards.rollout import BoundedReward, Rollout


def overlong(rollout: Rollout) -> float:
    """Soft overlong punishment: 0 up to maximum − cache, falling linearly to −1 at the maximum.

    DAPO, arXiv:2503.14476, equation 13.
    """
    cache: int = rollout.settings["overlong_cache_tokens"]
    excess = rollout.num_tokens - (rollout.settings["max_completion_tokens"] - cache)
    return -1.0 if excess > cache else -max(excess, 0) / cache if cache else 0.0


def repetition(rollout: Rollout) -> float:
    """Minus the share of n-grams of words that were there before; its weight is how much it costs.

    After the repetition penalty of arXiv:2502.03373; as a share, so that length does not matter.
    """
    size: int = rollout.settings["repetition_ngram"]
    words = rollout.completion.lower().split()
    grams = list(zip(*(words[start:] for start in range(size)), strict=False))
    return len(set(grams)) / len(grams) - 1 if grams else 0.0


def cosine_length(rollout: Rollout) -> float:
    """Cosine between the values for the shortest and the longest completion, by correctness.

    arXiv:2502.03373: a right answer is worth more when short, a wrong one when long. Differs from
    the paper in a completion of the maximum's length or more, which gets the value of the longest
    and no penalty of its own: `overlong` is there for that.
    """
    settings = rollout.settings
    shortest, longest = settings["cosine_correct" if rollout.answer_ok else "cosine_wrong"]
    share = min(rollout.num_tokens / settings["max_completion_tokens"], 1.0)
    return float(longest + 0.5 * (shortest - longest) * (1 + math.cos(math.pi * share)))


def cosine_bounds(settings: Mapping[str, Any]) -> tuple[float, float]:
    """Smallest and largest of the four corner values."""
    corners = (*settings["cosine_correct"], *settings["cosine_wrong"])
    return (min(corners), max(corners))


REWARDS = {
    "overlong": BoundedReward(
        overlong, (-1.0, 0.0), needs=("max_completion_tokens", "overlong_cache_tokens")
    ),
    "repetition": BoundedReward(repetition, (-1.0, 0.0), needs=("repetition_ngram",)),
    "cosine_length": BoundedReward(
        cosine_length,
        cosine_bounds,
        needs=("max_completion_tokens", "cosine_correct", "cosine_wrong"),
    ),
}
