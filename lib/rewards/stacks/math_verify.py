"""Stack `math_verify`: one answer by three graders, each 0 or 1, and whether they disagree.

The same text, ours, and Hugging Face's math-verify, which extracts by itself: with weights
0, 1, 0, 0 they are only compared.
"""

from typing import Any

from lib.rewards.rollout import BoundedReward, Rollout, kept


def string_match(rollout: Rollout) -> float:
    """1.0 when the answer is the reference's text."""
    return float((rollout.answer or "").strip() == rollout.reference.strip() != "")


def sympy_match(rollout: Rollout) -> float:
    """1.0 when our verifier finds them equal, with sympy where nothing before it decides."""
    return float(rollout.answer_ok)


@kept
def math_verify(rollout: Rollout) -> float:
    """1.0 when math-verify does, with its defaults; what it cannot parse, or fails on, is wrong."""
    from math_verify import parse, verify

    reference, text = rollout.reference, rollout.completion
    right: Any = parse(reference if "$" in reference else f"${reference}$")
    return float(verify(right, parse(text) or parse(f"${text}$")))


def graders_disagree(rollout: Rollout) -> float:
    """1.0 when one of them says something else than the others."""
    return float(len({grader(rollout) for grader in (string_match, sympy_match, math_verify)}) > 1)


REWARDS = {
    grader.__name__: BoundedReward(grader, (0.0, 1.0))
    for grader in (string_match, sympy_match, math_verify, graders_disagree)
}
