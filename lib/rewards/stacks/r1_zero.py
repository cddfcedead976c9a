"""Stack `r1_zero`: 1 only for the strict form and the right answer together.

The strict form, after a prompt that ends with `<think>`: `… </think> <answer>72</answer>`.
"""

from collections.abc import Sequence
from typing import Any

from lib.rewards.rollout import BoundedReward, Rollout
from reckon_verifier.equivalence import compare
from reckon_verifier.extract import extract_answer, unwrapped

TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def r1_zero_reward_fn(
    response: str,
    ground_truth: str | float | Sequence[Any],
    fast: bool = True,
    *,
    problem: str | None = None,
) -> dict[str, Any]:
    """Score format and answer as the public course (Stanford CS336) does.

    Args:
        response: completion of a prompt that ends inside `<think>`.
        ground_truth: the right answer, or several, of which any counts.
        fast: decide by text, numbers, structure and numerical identity only; False also asks the
            symbolic worker (sympy in another process).
        problem: text of the problem; the verifier reads units, options and variables in it.

    Returns:
        `format_reward`: 1.0 if `</think> <answer>` and `</answer>` occur. `answer_reward` and
        `reward`: 1.0 if the answer is right too. `class`: the format digit, then the answer digit,
        judged independently: "11", "10", "01", "00".
    """
    # (True, answer after `<answer>`), or (False, None).
    has_form, answer = _form_and_answer(response)
    if not has_form:
        # A right answer counts in `class` even without the form: it may be in a box or a sentence.
        answer = extract_answer(response)
    references = [ground_truth] if isinstance(ground_truth, str | float | int) else ground_truth
    right = any(
        compare(reference=str(reference), answer=answer, problem=problem, thorough=not fast).equal
        for reference in references
    )
    return {
        "format_reward": float(has_form),
        "answer_reward": float(has_form and right),
        "reward": float(has_form and right),
        "class": f"{has_form:d}{right:d}",
    }


def r1_zero(rollout: Rollout) -> float:
    """Return 1.0 if the strict form holds and the answer is right."""
    has_form, answer = _form_and_answer(rollout.completion)
    return float(has_form and rollout.compare(answer).equal)


def _form_and_answer(response: str) -> tuple[bool, str | None]:
    """Return (True, answer after the last `<answer>`); (False, None) if the form does not hold.

    The form holds if `</think> <answer>` and `</answer>` occur, with one space as in the course's
    grader; a box inside the tags is unwrapped.
    """
    if "</think> <answer>" not in response or "</answer>" not in response:
        return False, None
    # As in that grader, the text up to the end of the response, without closing tags.
    inside = response.rpartition("<answer>")[2].replace("</answer>", "")
    return True, unwrapped(inside)


REWARDS = {"r1_zero": BoundedReward(r1_zero, (0.0, 1.0), marks=TAGS)}
