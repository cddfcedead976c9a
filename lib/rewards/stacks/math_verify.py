"""Stack `math_verify`: one answer under three graders, each 0 or 1, and their disagreement.

The graders: equal text, our verifier, and Hugging Face's math-verify, which extracts the answer by
itself. With weights 0, 1, 0, 0 only our verifier counts, and the others are logged.
"""

import functools
from typing import Any

from lib.rewards.rollout import BoundedReward, Rollout


def string_match(rollout: Rollout) -> float:
    """Return 1.0 if the answer has the same text as the reference, apart from outer spaces."""
    return float((rollout.answer or "").strip() == rollout.reference.strip() != "")


def sympy_match(rollout: Rollout) -> float:
    """Return 1.0 if our verifier finds answer and reference equal; sympy is its last step."""
    return float(rollout.answer_ok)


def math_verify(rollout: Rollout) -> float:
    """Return 1.0 if math-verify, with its defaults, finds completion and reference equal."""
    return _verified(rollout.reference, rollout.completion)


# `graders_disagree` asks again for each completion of a batch, and sympy may take seconds.
@functools.lru_cache(maxsize=4096)
def _verified(reference: str, text: str) -> float:
    from math_verify import parse, verify

    # It reads LaTeX only between dollars, and takes the reference first: it is not symmetric.
    right: Any = parse(reference if "$" in reference else f"${reference}$")
    return float(verify(right, parse(text) or parse(f"${text}$")))


def graders_disagree(rollout: Rollout) -> float:
    """Return 1.0 unless all three graders give the same value."""
    return float(len({grader(rollout) for grader in (string_match, sympy_match, math_verify)}) > 1)


REWARDS = {
    grader.__name__: BoundedReward(grader, (0.0, 1.0))
    for grader in (string_match, sympy_match, math_verify, graders_disagree)
}
