import itertools
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.artifacts.completions import num_attempts
from lib.core.errors import UserError
from lib.stats import maj_at_k, pass_at_k, pass_hat_k

grades = st.lists(st.booleans(), min_size=1, max_size=8)


@st.composite
def attempts(draw):
    """Draw answers and grades of one problem: "a" and "b" are right, "x", "y" and "z" are not."""
    answers = draw(
        st.lists(st.sampled_from(["a", "b", "x", "y", "z", None]), min_size=1, max_size=7)
    )
    k = draw(st.integers(1, len(answers)))
    return answers, [answer in ("a", "b") for answer in answers], k


def vote_by_hand(answers, correct):
    candidates = [
        "right" if right else answer for answer, right in zip(answers, correct, strict=True)
    ]
    votes = Counter(candidate for candidate in candidates if candidate is not None)
    winners = [name for name, count in votes.items() if count == max(votes.values())]
    return Fraction("right" in winners, len(winners)) if winners else Fraction(0)


@given(grades, st.data())
def test_pass_at_k_and_pass_hat_k_are_shares_of_all_subsets(correct, data):
    k = data.draw(st.integers(1, len(correct)))
    subsets = [*itertools.combinations(correct, k)]
    counts = {"num_completions": len(correct), "num_correct": sum(correct), "k": k}
    for measure, holds in ((pass_at_k, any), (pass_hat_k, all)):
        assert measure(**counts) == pytest.approx(sum(map(holds, subsets)) / len(subsets))


@given(attempts())
def test_maj_at_k_is_the_mean_vote_over_all_subsets(case):
    answers, correct, k = case
    subsets = [
        vote_by_hand([answers[i] for i in subset], [correct[i] for i in subset])
        for subset in itertools.combinations(range(len(answers)), k)
    ]
    expected = float(sum(subsets) / len(subsets))
    assert maj_at_k(answers=answers, correct=correct, k=k) == pytest.approx(expected)


def test_many_completions_need_no_enumeration():
    answers = [str(number % 17) for number in range(256)]
    correct = [answer == "3" for answer in answers]
    assert 0 < maj_at_k(answers=answers, correct=correct, k=64) < 1


@pytest.mark.parametrize(("num_correct", "k"), [(-1, 1), (4, 1), (1, 0), (1, 4)])
def test_impossible_counts_are_refused(num_correct, k):
    with pytest.raises(ValueError, match=str(k) if 0 <= num_correct <= 3 else str(num_correct)):
        pass_at_k(num_completions=3, num_correct=num_correct, k=k)
    with pytest.raises(ValueError, match="k=2"):
        maj_at_k(answers=["1"], correct=[True], k=2)


def test_problems_with_unequal_numbers_of_attempts_are_refused():
    assert num_attempts({"p": "ab", "q": "cd"}, what="x") == 2
    with pytest.raises(UserError, match="x: problem p has 2 completions and problem r 3"):
        num_attempts({"p": "ab", "q": "cd", "r": "efg"}, what="x")
