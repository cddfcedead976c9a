import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.stats import (
    Estimate,
    clustered_mean,
    mean_estimate,
    share_interval,
)

scores = st.lists(st.integers(-5, 5), min_size=2, max_size=30)


@given(scores)
def test_standard_error_of_a_mean_is_s_over_root_n(values):
    estimate = mean_estimate(values)
    assert estimate.value == pytest.approx(np.mean(values))
    assert estimate.se == pytest.approx(np.std(values, ddof=1) / math.sqrt(len(values)), abs=1e-12)
    assert estimate.n == len(values)


@given(st.lists(st.lists(st.integers(0, 1), min_size=4, max_size=4), min_size=2, max_size=20))
def test_equally_many_completions_give_the_problem_means_error(rows):
    flat = [score for row in rows for score in row]
    clusters = [problem for problem, row in enumerate(rows) for _ in row]
    clustered = clustered_mean(flat, clusters)
    means = mean_estimate([sum(row) / len(row) for row in rows])
    assert clustered.value == pytest.approx(means.value)
    assert clustered.se == pytest.approx(means.se, abs=1e-12)


def test_one_problem_has_no_known_error():
    estimate = clustered_mean([1, 0, 1], ["a", "a", "a"])
    assert math.isnan(estimate.se)


def rate_estimate(successes, n):
    return mean_estimate([1] * successes + [0] * (n - successes))


def test_share_interval_of_grades_is_agresti_and_coulls():
    interval = share_interval(rate_estimate(81, 263))
    centre = (81 + 1.96**2 / 2) / (263 + 1.96**2)
    reach = 1.96 * math.sqrt(centre * (1 - centre) / (263 + 1.96**2))
    expected = (centre - reach, centre + reach)
    assert (interval.low, interval.high) == pytest.approx(expected, abs=1e-4)


@given(st.integers(1, 200), st.data())
def test_share_interval_stays_a_share_and_holds_the_rate(n, data):
    successes = data.draw(st.integers(0, n))
    interval = share_interval(rate_estimate(successes, n))
    assert 0 <= interval.low <= successes / n <= interval.high <= 1
    mirrored = share_interval(rate_estimate(n - successes, n))
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - interval.high, 1 - interval.low))


def test_a_rate_of_unknown_error_has_whole_problems_interval():
    known = share_interval(Estimate(0.612, rate_estimate(306, 500).se, 500))
    unknown = share_interval(Estimate(0.612, math.nan, 500))
    assert (unknown.low, unknown.high) == pytest.approx((known.low, known.high), abs=1e-4)
