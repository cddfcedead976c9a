"""Stack `s1`: correctness 1.0, numeric 0.1, format 4 × 0.025; sum 1.2."""

import re

from lib.rewards.rollout import BoundedReward, Rollout
from reckon_verifier.evaluate import as_number

TOLERANCE = 1e-6
"""Largest difference of two numbers that count as equal in this stack."""

_HASHES = re.compile(r"####\s*(-?\d[\d,]*(?:\.\d+)?)")


def correctness(rollout: Rollout) -> float:
    """Return 1.0 if the answer equals the reference as text or as a number within 1e-6."""
    answer = _answer(rollout)
    if answer is None:
        return 0.0
    if answer == rollout.reference.strip():
        return 1.0
    number, expected = as_number(answer), as_number(rollout.reference)
    if number is None or expected is None:
        return 0.0
    return 1.0 if abs(number - expected) <= TOLERANCE else 0.0


def numeric(rollout: Rollout) -> float:
    """Return 0.1 if the answer is a number, right or not."""
    answer = _answer(rollout)
    return 0.1 if answer is not None and as_number(answer) is not None else 0.0


def xml_format(rollout: Rollout) -> float:
    """Return 0.025 for each of the four tags present, in any case."""
    text = rollout.completion.lower()
    return 0.025 * sum(tag.lower() in text for tag in rollout.marks)


def _answer(rollout: Rollout) -> str | None:
    """Return the text in the first answer tags, in any case, or the first number after `####`.

    GSM8K's own solutions end in `#### 72`, so a model may have learned that form.
    """
    opening, closing = (re.compile(re.escape(tag), re.IGNORECASE) for tag in rollout.marks[2:])
    start = opening.search(rollout.completion)
    end = closing.search(rollout.completion, start.end()) if start else None
    if start and end:
        return rollout.completion[start.end() : end.start()].strip()
    number = _HASHES.search(rollout.completion)
    return number[1] if number else None


REWARDS = {
    "s1_correctness": BoundedReward(correctness, (0.0, 1.0), marks=4),
    "s1_numeric": BoundedReward(numeric, (0.0, 0.1), marks=4),
    "s1_xml_format": BoundedReward(xml_format, (0.0, 0.1), marks=4),
}
