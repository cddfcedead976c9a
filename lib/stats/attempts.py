"""What several completions of one problem show: pass@k, pass^k, maj@k.

All of them are expectations over a random set of k of the N completions that were sampled, computed
exactly, so that a larger N lowers the variance and leaves the meaning as it is.
"""

import math
from collections import Counter
from collections.abc import Sequence


def pass_at_k(*, num_completions: int, num_correct: int, k: int) -> float:
    """Chance that at least one of k completions is right: 1 - C(N-c, k) / C(N, k).

    Unbiased (arXiv:2107.03374, equation 1), unlike 1 - (1 - c/N)^k.

    Raises:
        ValueError: num_correct outside 0 … N, or k outside 1 … N.
    """
    if not 0 <= num_correct <= num_completions:
        raise ValueError(f"num_correct={num_correct} of num_completions={num_completions}")
    _check_k(k, num_completions)
    misses = math.comb(num_completions - num_correct, k)
    return 1.0 - misses / math.comb(num_completions, k)


def pass_hat_k(*, num_completions: int, num_correct: int, k: int) -> float:
    """pass^k, the chance that all of k completions are right: C(c, k) / C(N, k)
    (arXiv:2406.12045).

    Raises:
        ValueError: num_correct outside 0 … N, or k outside 1 … N.
    """
    # All are right where none is wrong: the complement of pass@k of the wrong ones.
    num_wrong = num_completions - num_correct
    return 1.0 - pass_at_k(num_completions=num_completions, num_correct=num_wrong, k=k)


def maj_at_k(*, answers: Sequence[str | None], correct: Sequence[bool], k: int) -> float:
    """Chance that a majority vote among k completions is right (self-consistency,
    arXiv:2203.11171).

    Right answers are one candidate however they are spelled ("0.5", "1/2"); wrong ones are
    candidates by their text. A completion without an answer casts no vote. Ties are broken by a
    fair draw; with no vote at all the problem is missed.

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
    silent = len(answers) - num_right - wrong.total()
    won = sum(
        math.comb(num_right, votes) * _ways_to_win(tuple(wrong.values()), silent, k, votes)
        for votes in range(1, min(num_right, k) + 1)
    )
    return won / math.comb(len(answers), k)


def _ways_to_win(rivals: tuple[int, ...], silent: int, k: int, votes: int) -> float:
    """Ways to draw the other k - votes completions so that `votes` wins, ties counted fairly.

    `ways[size, tied]` counts draws from the rivals seen so far: `size` completions, of whom no
    rival has more than `votes`, and `tied` rivals have exactly as many.
    """
    ways = {(0, 0): 1}
    for rival in rivals:
        extended: Counter[tuple[int, int]] = Counter()
        for (size, tied), count in ways.items():
            for taken in range(min(rival, votes, k - votes - size) + 1):
                reached = (size + taken, tied + (taken == votes))
                extended[reached] += count * math.comb(rival, taken)
        ways = dict(extended)
    return sum(
        count * math.comb(silent, k - votes - size) / (tied + 1)
        for (size, tied), count in ways.items()
    )


def _check_k(k: int, num_completions: int) -> None:
    if not 1 <= k <= num_completions:
        raise ValueError(f"k={k} with {num_completions} completions; expected 1 ≤ k ≤ completions")
