"""Negative controls: rewards that should teach nothing or harm, and verifiers with errors.

Named in `reward.extra`, with weight 0 for the stack's own rewards. Noise depends on problem and
completion only: the same completion gets the same reward in every run.
"""

import hashlib
from collections import Counter
from collections.abc import Callable

from lib.rewards.rollout import BoundedReward, Rollout

Completions = list[list[dict[str, str]]]


def _chance(rollout: Rollout) -> float:
    """Return a number in [0, 1), a hash of problem and completion."""
    text = f"{rollout.problem}\0{rollout.completion}"
    # 48 bits, which a float holds exactly.
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def _bounded(score: Callable[[Rollout], float]) -> BoundedReward:
    return BoundedReward(score, (0.0, 1.0))


# The verifier's verdict without noise: the upper bound of the others.
truth = _bounded(lambda rollout: float(rollout.answer_ok))

format_alone = _bounded(lambda rollout: float(rollout.format_ok))

random = _bounded(lambda rollout: float(_chance(rollout) < 0.5))

wrong_label = _bounded(lambda rollout: float(bool(rollout.answer) and not rollout.answer_ok))


def majority(
    completions: Completions, problem: list[str], reference: list[str], **columns: object
) -> list[float]:
    """Return 1 for completions with the problem's most frequent answer (TTRL, arXiv:2504.16084)."""
    # The last word stands for the answer: TRL passes the completion's text, not the extracted
    # answer. [] if the text is empty.
    endings = [messages[0]["content"].split()[-1:] for messages in completions]
    votes: dict[str, Counter[str]] = {}
    for question, ending in zip(problem, endings, strict=True):
        votes.setdefault(question, Counter()).update(ending)
    # `max` returns the first of equally frequent words.
    most = {text: max(count, key=count.__getitem__, default="") for text, count in votes.items()}
    return [
        float(ending == [most[question]]) for question, ending in zip(problem, endings, strict=True)
    ]


def _noisy(*, false_negatives: float, false_positives: float) -> BoundedReward:
    """Return the verdict as a reward, flipped for a share of right and of wrong answers."""

    def score(rollout: Rollout) -> float:
        right, chance = rollout.answer_ok, _chance(rollout)
        flipped = chance < (false_negatives if right else false_positives)
        return float(right != flipped)

    return _bounded(score)


false_negatives_10 = _noisy(false_negatives=0.1, false_positives=0.0)
false_negatives_40 = _noisy(false_negatives=0.4, false_positives=0.0)
false_positives_10 = _noisy(false_negatives=0.0, false_positives=0.1)
false_positives_40 = _noisy(false_negatives=0.0, false_positives=0.4)


def _always(verdict: bool, where: Callable[[Rollout], bool]) -> BoundedReward:
    """Return the verdict as a reward, but constant on a class: an error that a policy can learn."""
    return _bounded(lambda rollout: float(verdict if where(rollout) else rollout.answer_ok))


def _is_above_50(rollout: Rollout) -> bool:
    return (rollout.answer or "").isdecimal() and int(rollout.answer or "") > 50


def _multiplies(rollout: Rollout) -> bool:
    return " times " in (rollout.problem or "")


def _is_long(rollout: Rollout) -> bool:
    return rollout.completion.count("\n") >= 2


above_50_is_right = _always(True, _is_above_50)
multiplying_is_right = _always(True, _multiplies)
multiplying_is_wrong = _always(False, _multiplies)
long_is_right = _always(True, _is_long)
