"""Stack `math_verify`: one answer under three graders, each 0 or 1, and their disagreement.

The graders: equal text, our verifier, and Hugging Face's math-verify, which extracts the answer by
itself. With weights 0, 1, 0, 0 only our verifier counts, and the others are logged.
"""

from typing import Any

from lib.rewards.rollout import BoundedReward, Rollout, once_per_rollout


def string_match(rollout: Rollout) -> float:
    """Return 1.0 if the answer is the reference's text."""
    # Chained comparison: the texts are equal and not empty.
    return float((rollout.answer or "").strip() == rollout.reference.strip() != "")


def sympy_match(rollout: Rollout) -> float:
    """Return 1.0 if our verifier finds both equal, with sympy if nothing before it decides."""
    return float(rollout.answer_ok)


@once_per_rollout
def math_verify(rollout: Rollout) -> float:
    """Return 1.0 if math-verify, with its defaults, finds both equal; its failures count as
    wrong.
    """
    from math_verify import parse, verify

    # The whole completion, from which math-verify extracts the answer by its own rules.
    reference, text = rollout.reference, rollout.completion
    # math-verify reads LaTeX only between dollars. `verify` takes the reference first, and is not
    # symmetric.
    right: Any = parse(reference if "$" in reference else f"${reference}$")
    return float(verify(right, parse(text) or parse(f"${text}$")))


def graders_disagree(rollout: Rollout) -> float:
    """Return 1.0 if one grader disagrees with the others."""
    return float(len({grader(rollout) for grader in (string_match, sympy_match, math_verify)}) > 1)


REWARDS = {
    grader.__name__: BoundedReward(grader, (0.0, 1.0))
    for grader in (string_match, sympy_match, math_verify, graders_disagree)
}
