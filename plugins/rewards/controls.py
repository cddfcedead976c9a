"""Negative controls: rewards that should teach nothing or harm, and verifiers with errors.

Named in `reward.extra`, with weight 0 for the stack's own rewards. Noise depends on problem and
completion only: the same completion gets the same reward in every run.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from decimal import Decimal

from lib.rewards.rollout import BoundedReward, Rollout

Completions = list[list[dict[str, str]]]


def _chance(rollout: Rollout) -> float:
    """Return a pseudo-random number in [0, 1), a hash of problem and completion."""
    text = f"{rollout.problem}\0{rollout.completion}"
    # 48 bits, which a float holds exactly.
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def _bounded(score: Callable[[Rollout], float]) -> BoundedReward:
    """Return `score` as a reward with the range 0 to 1."""
    return BoundedReward(score, (0.0, 1.0))


# 1 for a right answer: the verifier's verdict without noise, the upper bound of the others.
truth = _bounded(lambda rollout: float(rollout.answer_ok))

# 1 for the right form, whatever the answer.
format_alone = _bounded(lambda rollout: float(rollout.format_ok))

# 1 for half of the completions, by chance.
random = _bounded(lambda rollout: float(_chance(rollout) < 0.5))

# 1 for a wrong answer, 0 for a right one or for none (`answer` is then None or '').
wrong_label = _bounded(lambda rollout: float(bool(rollout.answer) and not rollout.answer_ok))


def majority(
    completions: Completions, problem: list[str], reference: list[str], **columns: object
) -> list[float]:
    """Return 1 for completions with the problem's most frequent answer (TTRL, arXiv:2504.16084)."""
    # The last word of each completion is taken as its answer: TRL passes the text, not the
    # extracted answer. "so it is 42" -> ["42"]; an empty text -> [], which gets no vote and no
    # reward.
    endings = [messages[0]["content"].split()[-1:] for messages in completions]
    votes: dict[str, Counter[str]] = {}
    for question, ending in zip(problem, endings, strict=True):
        votes.setdefault(question, Counter()).update(ending)
    # Problem -> its most frequent answer, the first of equally frequent ones; '' without answers.
    most = {text: max(count, key=count.__getitem__, default="") for text, count in votes.items()}
    return [
        float(ending == [most[question]]) for question, ending in zip(problem, endings, strict=True)
    ]


def _noisy(*, false_negatives: float, false_positives: float) -> BoundedReward:
    """Make a reward: the verdict as 1 or 0, flipped for a random share of the completions.

    Args:
        false_negatives: share of the right answers with reward 0.
        false_positives: share of the wrong answers with reward 1.
    """

    def score(rollout: Rollout) -> float:
        """Return the verdict as 0 or 1, flipped if the completion's hash is below the share."""
        # `_chance` is a number in [0, 1), always the same for the same problem and completion.
        right, chance = rollout.answer_ok, _chance(rollout)
        flipped = chance < (false_negatives if right else false_positives)
        return float(right != flipped)

    # A reward with the range 0 to 1.
    return _bounded(score)


false_negatives_10 = _noisy(false_negatives=0.1, false_positives=0.0)
false_negatives_40 = _noisy(false_negatives=0.4, false_positives=0.0)
false_positives_10 = _noisy(false_negatives=0.0, false_positives=0.1)
false_positives_40 = _noisy(false_negatives=0.0, false_positives=0.4)


def _always(fixed: bool, applies: Callable[[Rollout], bool]) -> BoundedReward:
    """Make a reward: `fixed` where `applies(rollout)` is True, else the verdict, as 1 or 0.

    A policy can learn this error, since it is systematic.
    """
    return _bounded(lambda rollout: float(fixed if applies(rollout) else rollout.answer_ok))


def _is_above_50(rollout: Rollout) -> bool:
    """Return True if the answer is a whole number above 50, in digits only."""
    answer = rollout.answer or ""
    # `int` refuses more than 4,300 digits.
    return answer.isdecimal() and Decimal(answer) > 50


def _multiplies(rollout: Rollout) -> bool:
    """Return True if the problem has a multiplication, in the generator's words."""
    return " times " in (rollout.problem or "")


def _is_long(rollout: Rollout) -> bool:
    """Return True if the completion has three lines or more."""
    return rollout.completion.count("\n") >= 2


above_50_is_right = _always(True, _is_above_50)
multiplying_is_right = _always(True, _multiplies)
multiplying_is_wrong = _always(False, _multiplies)
long_is_right = _always(True, _is_long)
