"""Stack `shaping`: rewards for length and repetition, beyond right and wrong.

Lengths are in tokens; `max_completion_tokens` is the length limit.
"""

import math
from collections.abc import Mapping
from typing import Any

from lib.rewards.rollout import BoundedReward, Rollout


def overlong(rollout: Rollout) -> float:
    """Return DAPO's soft overlong punishment: 0 up to maximum − cache, then linear to −1 at the
    maximum.

    Source: DAPO, arXiv:2503.14476, equation 13.
    """
    cache: int = rollout.settings["overlong_cache_tokens"]
    # Tokens beyond the length at which the punishment begins; negative before it.
    excess = rollout.num_tokens - (rollout.settings["max_completion_tokens"] - cache)
    # −1 beyond the maximum; 0 … −1 over the cache. With a cache of 0 the value jumps at the
    # maximum, and nothing is divided by 0.
    return -1.0 if excess > cache else -max(excess, 0) / cache if cache else 0.0


def repetition(rollout: Rollout) -> float:
    """Return minus the share of repeated word n-grams.

    With n = 2, "a b a b a" has 4 n-grams, 2 of them different: 2/4 − 1 = −0.5. Adapted from the
    repetition penalty of arXiv:2502.03373; a share, so length does not count.
    """
    size: int = rollout.settings["repetition_ngram"]
    words = rollout.completion.lower().split()
    # n copies of the words, each shifted by one more word; zip ends with the shortest.
    grams = list(zip(*(words[start:] for start in range(size)), strict=False))
    # 0 for a completion of fewer than n words.
    return len(set(grams)) / len(grams) - 1 if grams else 0.0


def cosine_length(rollout: Rollout) -> float:
    """Return a value between those of a completion of 0 tokens and of the maximum, by a cosine.

    The two values are `cosine_correct` for a right answer, `cosine_wrong` for another one
    (arXiv:2502.03373: a right answer is worth more when short, a wrong one when long). Differs from
    the paper in: a completion at or beyond the maximum gets the value of the longest, without a
    further penalty (see `overlong`).
    """
    settings = rollout.settings
    shortest, longest = settings["cosine_correct" if rollout.answer_ok else "cosine_wrong"]
    # While the share rises from 0 to 1, the cosine below falls from 1 to −1.
    share = min(rollout.num_tokens / settings["max_completion_tokens"], 1.0)
    return float(longest + 0.5 * (shortest - longest) * (1 + math.cos(math.pi * share)))


def cosine_bounds(settings: Mapping[str, Any]) -> tuple[float, float]:
    """Return the smallest and largest value of `cosine_length`: it never leaves its end values."""
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
