import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.stats import (
    Difference,
    Estimate,
    Interval,
    independent_difference,
    mean_estimate,
    paired_difference,
)

pairs = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=4),
    st.tuples(st.integers(0, 4), st.integers(0, 4)),
    min_size=2,
    max_size=20,
)


def compare(before, after):
    return paired_difference(
        before={str(i): float(score) for i, score in enumerate(before)},
        after={str(i): float(score) for i, score in enumerate(after)},
    )


def test_whole_changes_give_bonett_and_prices_interval():
    """10 gains and 2 losses of 20 problems count as 11 and 3 of 22 (2012, equation 4)."""
    change = compare([0] * 10 + [1] * 2 + [0] * 8, [1] * 10 + [0] * 10)
    centre = (11 - 3) / 22
    error = math.sqrt(((11 + 3) / 22 - centre**2) / 22)
    assert change.difference.value == pytest.approx(0.4)
    assert change.interval.low == pytest.approx(centre - 1.959964 * error, abs=1e-6)
    assert change.interval.high == pytest.approx(centre + 1.959964 * error, abs=1e-6)
    assert change.p_value == pytest.approx(math.erfc(centre / error / math.sqrt(2)))


@given(pairs)
def test_swapping_the_checkpoints_turns_the_sign_alone(scores):
    before = {problem: float(first) for problem, (first, _) in scores.items()}
    after = {problem: float(second) for problem, (_, second) in scores.items()}
    forward = paired_difference(before=before, after=after)
    backward = paired_difference(before=after, after=before)
    assert forward.difference.value == pytest.approx(-backward.difference.value)
    assert forward.p_value == pytest.approx(backward.p_value)
    assert forward.interval.low == pytest.approx(-backward.interval.high)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=6, max_size=40))
def test_interval_excludes_zero_when_p_is_below_five_percent(scores):
    change = compare(*zip(*scores, strict=True))
    if change.difference.se > 0 and change.p_value != 2.0 ** (1 - sum(a != b for a, b in scores)):
        holds_zero = change.interval.low <= 0 <= change.interval.high
        assert holds_zero == (change.p_value >= 0.05)


def test_a_checkpoint_does_not_differ_from_itself():
    change = compare([0, 1, 1, 0], [0, 1, 1, 0])
    assert (change.difference.value, change.p_value) == (0, 1)
    assert not change.is_worse() and not change.is_better()


def test_two_problems_that_both_improved_prove_little():
    assert compare([0, 0], [1, 1]).p_value == 0.5


def test_pairing_sees_what_two_separate_estimates_cannot():
    generator = np.random.default_rng(0)
    before = (generator.random(400) < 0.5).astype(float)
    after = before.copy()
    after[np.flatnonzero(before == 0)[:12]] = 1
    paired = compare(before, after)
    apart = independent_difference(before=mean_estimate(before), after=mean_estimate(after))
    assert paired.is_better()
    assert not apart.is_better()
    assert paired.difference.value == pytest.approx(apart.difference.value)


def test_different_problems_are_refused():
    with pytest.raises(ValueError, match="1 only before, 2 only after"):
        paired_difference(before={"a": 1.0, "b": 1.0}, after={"b": 1.0, "c": 0.0, "d": 0.0})


def test_unknown_error_of_one_side_is_no_evidence():
    change = independent_difference(before=Estimate(0.0, math.nan, 1), after=Estimate(1.0, 0.1, 50))
    assert change.p_value == 1.0
    assert change.interval.low <= 0 <= change.interval.high


def test_a_detectable_difference_is_seen_4_times_in_5():
    generator = np.random.default_rng(2)
    n, sd = 80, 0.6
    effect = Difference(Estimate(0.0, sd / math.sqrt(n), n), Interval(0.0, 0.0), 1.0).detectable
    zeros = np.zeros(n)
    changes = [compare(zeros, generator.normal(effect, sd, size=n)) for _ in range(1500)]
    detected = sum(difference.is_better() for difference in changes) / len(changes)
    assert detected == pytest.approx(0.8, abs=0.03)
