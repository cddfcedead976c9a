"""Rates of solving a problem in k attempts: pass@k, pass^k, maj@k.

Each is an expectation over a random set of k of the N sampled completions, computed exactly: a
larger N lowers the variance and does not change the meaning.
"""

import math
from collections import Counter
from collections.abc import Sequence


def pass_at_k(*, num_completions: int, num_correct: int, k: int) -> float:
    """Return the chance that at least one of k completions is right: 1 - C(N-c, k) / C(N, k).

    Unbiased (arXiv:2107.03374, equation 1), unlike 1 - (1 - c/N)^k.

    Args:
        num_completions, num_correct: N and c, of one problem.

    Raises:
        ValueError: num_correct outside 0 … N, or k outside 1 … N.
    """
    if not 0 <= num_correct <= num_completions:
        raise ValueError(f"num_correct={num_correct} of num_completions={num_completions}")
    _check_k(k, num_completions)
    # Exact integers: factorials as floats overflow at 171!.
    misses = math.comb(num_completions - num_correct, k)
    return 1.0 - misses / math.comb(num_completions, k)


def pass_hat_k(*, num_completions: int, num_correct: int, k: int) -> float:
    """Return pass^k, the chance that all of k completions are right: C(c, k) / C(N, k).

    Source: arXiv:2406.12045. Arguments and errors are those of `pass_at_k`.
    """
    num_wrong = num_completions - num_correct
    return 1.0 - pass_at_k(num_completions=num_completions, num_correct=num_wrong, k=k)


def maj_at_k(*, answers: Sequence[str | None], correct: Sequence[bool], k: int) -> float:
    """Return the chance that a majority vote among k completions is right.

    Self-consistency, arXiv:2203.11171. Right answers are one candidate, however they are written
    ("0.5", "1/2"); wrong answers are candidates by their text. A completion without an answer casts
    no vote. Ties are broken by a fair draw; without any vote the problem counts as wrong.

    Args:
        answers: [N] the answer of each completion of one problem; None or '' for none.
        correct: [N] whether it is right.

    Raises:
        ValueError: answers and correct differ in length, or k outside 1 … N.
    """
    if len(answers) != len(correct):
        raise ValueError(f"{len(answers)} answers but {len(correct)} grades")
    _check_k(k, len(answers))
    wrong = Counter(
        answer for answer, right in zip(answers, correct, strict=True) if not right and answer
    )
    num_right = sum(correct)
    num_unanswered = len(answers) - num_right - wrong.total()
    # Sets of k in which the right answer wins (1/m in a tie of m), by its number of votes.
    won = sum(
        math.comb(num_right, votes) * _ways_to_win(tuple(wrong.values()), num_unanswered, k, votes)
        for votes in range(1, min(num_right, k) + 1)
    )
    return won / math.comb(len(answers), k)


def _ways_to_win(rivals: tuple[int, ...], num_unanswered: int, k: int, votes: int) -> float:
    """Count the ways to choose the k - votes other completions so that the right answer wins.

    A tie with m rivals counts as 1 / (m + 1).

    Args:
        rivals: number of completions with each wrong answer.
        num_unanswered: number of completions without an answer.
        votes: completions with the right answer in the set, at least 1.
    """
    # (size, tied) → the number of ways to choose `size` completions of the rivals so far, of which
    # `tied` rivals have exactly `votes`.
    ways = {(0, 0): 1}
    for rival in rivals:
        extended: Counter[tuple[int, int]] = Counter()
        for (size, tied), count in ways.items():
            # With more than `votes`, this rival would win.
            for taken in range(min(rival, votes, k - votes - size) + 1):
                state = (size + taken, tied + (taken == votes))
                extended[state] += count * math.comb(rival, taken)
        ways = dict(extended)
    return sum(
        # The rest of the set are completions without an answer.
        count * math.comb(num_unanswered, k - votes - size) / (tied + 1)
        for (size, tied), count in ways.items()
    )


def _check_k(k: int, num_completions: int) -> None:
    if not 1 <= k <= num_completions:
        raise ValueError(f"k={k} with {num_completions} completions; expected 1 ≤ k ≤ completions")
