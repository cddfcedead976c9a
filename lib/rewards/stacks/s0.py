"""Stack `s0`: format exactly +3, tags −3…+1.5, answer −2…+5, number −1.5…+3; sum −6.5…+12.5.

The prompt ends with the opening tag of the reasoning, so completions are not searched for it.
"""

import re

from lib.rewards.rollout import BoundedReward, Rollout
from reckon_verifier.evaluate import as_number

# With the full stop of a sentence: "72."
_NUMBER = re.compile(r"-?[\d.,]+")


def match_format_exactly(rollout: Rollout) -> float:
    """Return 3.0 if the reasoning is closed and the text ends with an answer between its tags."""
    return 0.0 if _tagged_answer(rollout) is None else 3.0


def match_format_approximately(rollout: Rollout) -> float:
    """Return the sum over three tags: 0.5 for a tag occurring exactly once, else −1.0."""
    return sum(0.5 if rollout.completion.count(tag) == 1 else -1.0 for tag in rollout.marks[1:])


def check_answer(rollout: Rollout) -> float:
    """Return 5.0 for the same text, 3.5 if equal, 2.0 within 10 %, 1.5 within 20 %, else −2.0."""
    # None if the form is broken or the answer empty, '' for white space as the answer.
    answer = _tagged_answer(rollout)
    if not answer:
        return -2.0
    if answer == rollout.reference:
        return 5.0
    if rollout.compare(answer).equal:
        return 3.5
    ratio = _ratio(answer, rollout.reference)
    if ratio is None:
        return -2.0
    if 0.9 <= ratio <= 1.1:
        return 2.0
    return 1.5 if 0.8 <= ratio <= 1.2 else -2.0


def check_numbers(rollout: Rollout) -> float:
    """Return 3.0 if the first number after the answer's opening tag is the reference, else −1.5."""
    # No closing tag is needed.
    _, tag, after = rollout.completion.partition(rollout.marks[2])
    match = _NUMBER.search(after) if tag else None
    number = as_number(match[0].rstrip(".,")) if match else None
    is_right = number is not None and number == as_number(rollout.reference)
    return 3.0 if is_right else -1.5


def _tagged_answer(rollout: Rollout) -> str | None:
    """Return the stripped text between the answer's tags; None if the form is broken.

    The form: the reasoning's closing tag, the answer between its tags, then only white space.
    """
    _, reasoning_close, answer_open, answer_close = rollout.marks
    # A missing tag leaves `answer` or `end` empty.
    _, _, after = rollout.completion.partition(reasoning_close)
    _, _, rest = after.partition(answer_open)
    answer, end, trailing = rest.partition(answer_close)
    is_whole = answer and end and not trailing.strip()
    return answer.strip() if is_whole else None


def _ratio(answer: str, reference: str) -> float | None:
    """Return answer / reference; None if it is above 2 or below -2, or there is no such number."""
    number, right = as_number(answer), as_number(reference)
    # A ratio such as 1e400 is beyond a float.
    if number is None or not right or abs(number) > abs(2 * right):
        return None
    return float(number / right)


REWARDS = {
    "match_format_exactly": BoundedReward(match_format_exactly, (0.0, 3.0), marks=4),
    "match_format_approximately": BoundedReward(match_format_approximately, (-3.0, 1.5), marks=4),
    "check_answer": BoundedReward(check_answer, (-2.0, 5.0), marks=4),
    "check_numbers": BoundedReward(check_numbers, (-1.5, 3.0), marks=4),
}
