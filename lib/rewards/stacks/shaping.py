"""Stack `shaping`: rewards for length (in tokens) and repetition, beyond right and wrong."""

import math
from collections.abc import Mapping
from typing import Any

from lib.rewards.rollout import BoundedReward, Rollout


def overlong(rollout: Rollout) -> float:
    """Return DAPO's soft overlong punishment (arXiv:2503.14476, equation 13).

    0 up to `max_completion_tokens` − `overlong_cache_tokens`, then linear to −1 at
    `max_completion_tokens`. Maximum 100, cache 20: 80 tokens give 0, 90 give −0.5, 100 give −1.
    """
    cache: int = rollout.settings["overlong_cache_tokens"]
    # Tokens beyond the length at which the punishment begins; negative before it.
    excess = rollout.num_tokens - (rollout.settings["max_completion_tokens"] - cache)
    if excess > cache:
        return -1.0
    return -max(excess, 0) / cache if cache else 0.0


def repetition(rollout: Rollout) -> float:
    """Return minus the share of repeated word n-grams, n = `repetition_ngram`.

    With n = 2, "a b a b a" has 4 n-grams, 2 of them different: 2/4 − 1 = −0.5. Adapted from the
    repetition penalty of arXiv:2502.03373; as a share it does not grow with length.
    """
    size: int = rollout.settings["repetition_ngram"]
    words = rollout.completion.lower().split()
    grams = list(zip(*(words[start:] for start in range(size)), strict=False))
    return len(set(grams)) / len(grams) - 1 if grams else 0.0


def cosine_length(rollout: Rollout) -> float:
    """Return a reward by length: from one set value to another along half a cosine.

    `cosine_correct` has the values of a right answer of 0 tokens and of one of
    `max_completion_tokens`, `cosine_wrong` those of a wrong one: (2, 1) gives 2 at 0 tokens, 1.5 at
    half of the maximum, and 1 from the maximum on.

    Source: arXiv:2502.03373, where a right answer is worth more when short, a wrong one when long.
    Differs from the paper in: a completion of the maximum gets no further penalty (see `overlong`).
    """
    settings = rollout.settings
    shortest, longest = settings["cosine_correct" if rollout.answer_ok else "cosine_wrong"]
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
