"""Stack `s1`: correctness 1.0, numeric 0.1, format 4 × 0.025; sum 1.2."""

import re

from lib.rewards.rollout import BoundedReward, Rollout
from lib.verifier.evaluate import as_number

TOLERANCE = 1e-6
"""Largest difference of two numbers that count as equal in this stack."""

# "#### 1,234.5": the group is the number.
_HASHES = re.compile(r"####\s*(-?\d[\d,]*(?:\.\d+)?)")


def correctness(rollout: Rollout) -> float:
    """Return 1.0 if the answer equals the reference as text or as a number within 1e-6."""
    answer = _answer(rollout)
    if answer is None:
        return 0.0
    if answer == rollout.reference.strip():
        return 1.0
    number, right = as_number(answer), as_number(rollout.reference)
    close = number is not None and right is not None and abs(number - right) <= TOLERANCE
    return 1.0 if close else 0.0


def numeric(rollout: Rollout) -> float:
    """Return 0.1 if the answer is a number, right or not."""
    answer = _answer(rollout)
    return 0.1 if answer is not None and as_number(answer) is not None else 0.0


def xml_format(rollout: Rollout) -> float:
    """Return 0.025 for each of the four tags present, in any case."""
    text = rollout.completion.lower()
    return 0.025 * sum(tag.lower() in text for tag in rollout.marks)


def _answer(rollout: Rollout) -> str | None:
    """Return the text in the first answer tags, in any case; without them, the number after
    `####`.
    """
    opened, closed = (re.compile(re.escape(tag), re.IGNORECASE) for tag in rollout.marks[2:])
    # The first pair; the format's own parser reads the last one.
    if (start := opened.search(rollout.completion)) and (
        end := closed.search(rollout.completion, start.end())
    ):
        return rollout.completion[start.end() : end.start()].strip()
    # GSM8K's own solutions end in `#### 72`, so a model may have learned that form.
    after = _HASHES.search(rollout.completion)
    return after and after[1]


REWARDS = {
    "s1_correctness": BoundedReward(correctness, (0.0, 1.0)),
    "s1_numeric": BoundedReward(numeric, (0.0, 0.1)),
    "s1_xml_format": BoundedReward(xml_format, (0.0, 0.1), marks=4),
}
