"""Stack `s4`: correctness 2.0, integer 0.5, strict and soft form 0.5 each, tags 4 × 0.125.

The strict form, with the tags of the prompt format `xml`:

    <reasoning>
    …
    </reasoning>
    <answer>
    72
    </answer>
"""

import re

from lib.rewards.rollout import BoundedReward, Rollout

_INTEGER = re.compile(r"[-+]?\d+")


def right_answer(rollout: Rollout) -> float:
    """Return 2.0 if the answer between the tags is right."""
    return 2.0 if rollout.compare(rollout.parsed.answer).equal else 0.0


def integer(rollout: Rollout) -> float:
    """Return 0.5 if the answer between the tags is an integer, right or not."""
    answer = rollout.parsed.answer
    return 0.5 if answer is not None and _INTEGER.fullmatch(answer.strip()) else 0.0


def strict_format(rollout: Rollout) -> float:
    """Return 0.5 if the completion is two blocks, every tag on its own line, and nothing else.

    "<reasoning>\\n…\\n</reasoning>\\n<answer>\\n72\\n</answer>"
    """
    reasoning_open, reasoning_close, answer_open, answer_close = rollout.marks
    beginning = f"{reasoning_open}\n"
    # One line break may follow the last tag.
    text = rollout.completion.removesuffix("\n")
    if not text.startswith(beginning):
        return 0.0
    # Not a regular expression with two `.*`: the time is linear in the text.
    _, middle, rest = text[len(beginning) :].partition(f"\n{reasoning_close}\n{answer_open}\n")
    return 0.5 if middle and rest.endswith(f"\n{answer_close}") else 0.0


def soft_format(rollout: Rollout) -> float:
    """Return 0.5 if the four tags occur in order and the completion ends with the last one."""
    if not rollout.completion.rstrip().endswith(rollout.marks[3]):
        return 0.0
    remaining = rollout.completion
    for tag in rollout.marks:
        _, match, remaining = remaining.partition(tag)
        if not match:
            return 0.0
    return 0.5


def tag_count(rollout: Rollout) -> float:
    """Return 0.125 for each tag that occurs once and on its own line.

    Text may follow the last tag on its line.
    """
    text = f"\n{rollout.completion}\n"
    num_good = 0
    for tag in rollout.marks:
        line = f"\n{tag}" if tag == rollout.marks[3] else f"\n{tag}\n"
        num_good += text.count(tag) == 1 and line in text
    return 0.125 * num_good


REWARDS = {
    "s4_correctness": BoundedReward(right_answer, (0.0, 2.0)),
    "s4_integer": BoundedReward(integer, (0.0, 0.5)),
    "s4_strict_format": BoundedReward(strict_format, (0.0, 0.5), marks=4),
    "s4_soft_format": BoundedReward(soft_format, (0.0, 0.5), marks=4),
    "s4_tag_count": BoundedReward(tag_count, (0.0, 0.5), marks=4),
}
