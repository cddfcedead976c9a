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
    """Return 0.5 if the completion is two blocks, every tag on its own line, and nothing else."""
    start, end, opening, closing = rollout.marks
    text = rollout.completion.removesuffix("\n")
    # `partition`, not a regular expression with two `.*`: the time is linear in the text.
    _, middle, answer = text[len(f"{start}\n") :].partition(f"\n{end}\n{opening}\n")
    # `answer` needs a line break of its own, beside that of the middle tags.
    whole = text.startswith(f"{start}\n") and middle and answer.endswith(f"\n{closing}")
    return 0.5 if whole else 0.0


def soft_format(rollout: Rollout) -> float:
    """Return 0.5 if the two blocks occur in order and the completion ends with the second."""
    if not rollout.completion.rstrip().endswith(rollout.marks[3]):
        return 0.0
    position = 0
    for tag in rollout.marks:
        # The end of this tag, searched from the end of the tag before: the order is checked too.
        position = rollout.completion.find(tag, position) + len(tag)
        # True only if `find` returned −1: the tag is missing.
        if position < len(tag):
            return 0.0
    return 0.5


def tag_count(rollout: Rollout) -> float:
    """Return 0.125 for each tag that occurs once and on its own line.

    Text may follow the last tag on its line.
    """
    # Line breaks are added so that a tag on the first or last line is between two as well.
    text = f"\n{rollout.completion}\n"
    once = [tag for tag in rollout.marks if text.count(tag) == 1]
    # Only the last tag may be followed by text, so no line break is required after it.
    last = rollout.marks[3]
    alone = [tag for tag in once if f"\n{tag}\n" in text or (tag == last and f"\n{tag}" in text)]
    return 0.125 * len(alone)


REWARDS = {
    "s4_correctness": BoundedReward(right_answer, (0.0, 2.0)),
    "s4_integer": BoundedReward(integer, (0.0, 0.5)),
    "s4_strict_format": BoundedReward(strict_format, (0.0, 0.5), marks=4),
    "s4_soft_format": BoundedReward(soft_format, (0.0, 0.5), marks=4),
    "s4_tag_count": BoundedReward(tag_count, (0.0, 0.5), marks=4),
}
