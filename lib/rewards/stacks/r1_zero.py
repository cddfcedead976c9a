"""Stack `r1_zero`: 1 only for the strict form and the right answer together."""

from collections.abc import Sequence
from typing import Any

from lib.rewards.rollout import BoundedReward, Rollout
from lib.verifier.equivalence import compare
from lib.verifier.extract import extract_answer, last_boxed

TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def r1_zero_reward_fn(
    response: str,
    ground_truth: str | float | Sequence[Any],
    fast: bool = True,
    *,
    problem: str | None = None,
) -> dict[str, Any]:
    """Format and answer reward of the course that this contract comes from.

    Args:
        response: completion of a prompt that ends inside `<think>`.
        ground_truth: the right answer; of several given, one suffices.
        fast: decide by text, numbers, structure and numerical identity only; False also asks the
            symbolic worker.
        problem: text of the problem, see `is_equivalent`.

    Returns:
        `format_reward` 1.0 when `</think> <answer>` and `</answer>` occur, `answer_reward` 1.0
        when moreover the answer is right, `reward` 1.0 only when both are; `class`, format and
        answer each on its own: "11", "10", "01" for a right answer without the form, "00".
    """
    has_form, answer = _strict(response)
    answer = answer if has_form else extract_answer(response)
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
    """1.0 when the strict form holds and the answer is right; `fast` is no question here, where
    the symbolic worker has been asked for the answer accuracy anyway."""
    has_form, answer = _strict(rollout.completion)
    return float(has_form and rollout.compare(answer).equal)


def _strict(response: str) -> tuple[bool, str | None]:
    """Whether the form holds, and what is between the last tags, a box inside them opened."""
    if "</think> <answer>" not in response or "</answer>" not in response:
        return False, None
    inside = response.rpartition("<answer>")[2].partition("</answer>")[0]
    return True, last_boxed(inside) if "\\boxed" in inside else inside


REWARDS = {"r1_zero": BoundedReward(r1_zero, (0.0, 1.0), marks=TAGS)}
