"""Stack `s1`: correctness 1.0, numeric 0.1, format 4 × 0.025; sum 1.2."""

from lib.rewards.rollout import BoundedReward, Rollout, kept
from lib.verifier.numbers import as_number

TOLERANCE = 1e-6
"""Difference up to which two numbers count as equal in this stack."""


def correctness(rollout: Rollout) -> float:
    """1.0 when the answer equals the reference as text or as a number within 1e-6."""
    answer = _answer(rollout)
    if answer is None:
        return 0.0
    if answer == rollout.reference.strip():
        return 1.0
    number, right = as_number(answer), as_number(rollout.reference)
    close = number is not None and right is not None and abs(number - right) <= TOLERANCE
    return 1.0 if close else 0.0


def numeric(rollout: Rollout) -> float:
    """0.1 when the answer is a number, right or not."""
    answer = _answer(rollout)
    return 0.1 if answer is not None and as_number(answer) is not None else 0.0


def xml_format(rollout: Rollout) -> float:
    """0.025 for each of the four tags that occurs exactly once."""
    return 0.025 * sum(rollout.completion.count(tag) == 1 for tag in rollout.marks)


@kept
def _answer(rollout: Rollout) -> str | None:
    """The answer between its tags; without those, what follows the last `####`."""
    if rollout.parsed.answer is not None:
        return rollout.parsed.answer
    _, hashes, after = rollout.completion.rpartition("####")
    lines = after.strip().splitlines()
    return lines[0].strip() if hashes and lines else None


REWARDS = {
    "s1_correctness": BoundedReward(correctness, (0.0, 1.0)),
    "s1_numeric": BoundedReward(numeric, (0.0, 0.1)),
    "s1_xml_format": BoundedReward(xml_format, (0.0, 0.1), marks=4),
}
