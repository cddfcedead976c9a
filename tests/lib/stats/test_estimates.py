import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.stats import (
    Estimate,
    clustered_mean,
    mean_estimate,
    seeds_interval,
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
    assert estimate.interval().low == -math.inf


# Printed tables of Student's t (two-sided), for example in Abramowitz and Stegun, table 26.10.
@pytest.mark.parametrize(
    ("df", "level", "expected"),
    [
        (1, 0.95, 12.706),
        (5, 0.90, 2.015),
        (30, 0.99, 2.750),
        (5000, 0.95, 1.960),
    ],
)
def test_an_interval_is_that_of_the_printed_student_t(df, level, expected):
    interval = Estimate(0.0, 1.0, df + 1).interval(level)
    assert (-interval.low, interval.high) == pytest.approx((expected, expected), abs=6e-4)


def of_problems(successes, n):
    return mean_estimate([1] * successes + [0] * (n - successes))


def test_share_interval_of_grades_is_agresti_and_coulls():
    interval = share_interval(of_problems(81, 263))
    centre = (81 + 1.96**2 / 2) / (263 + 1.96**2)
    reach = 1.96 * math.sqrt(centre * (1 - centre) / (263 + 1.96**2))
    expected = (centre - reach, centre + reach)
    assert (interval.low, interval.high) == pytest.approx(expected, abs=1e-4)


@given(st.integers(1, 200), st.data())
def test_share_interval_stays_a_share_and_holds_the_rate(n, data):
    successes = data.draw(st.integers(0, n))
    interval = share_interval(of_problems(successes, n))
    assert 0 <= interval.low <= successes / n <= interval.high <= 1
    mirrored = share_interval(of_problems(n - successes, n))
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - interval.high, 1 - interval.low))


@pytest.mark.parametrize("n", [1, 30, 272, 1319])
def test_none_right_bounds_the_rate_with_95_percent_or_more(n):
    never, always = share_interval(of_problems(0, n)), share_interval(of_problems(n, n))
    # With the rate at the bound, none of n is right in at most 5 of 100 experiments.
    assert (1 - never.high) ** n <= 0.05 or n == 1
    assert (never.low, always.high) == (0, 1)
    assert always.low == pytest.approx(1 - never.high)
    assert 0 < never.high < 1


def test_a_rate_of_unknown_error_has_whole_problems_interval():
    known = share_interval(Estimate(0.612, of_problems(306, 500).se, 500))
    unknown = share_interval(Estimate(0.612, math.nan, 500))
    assert (unknown.low, unknown.high) == pytest.approx((known.low, known.high), abs=1e-4)


def test_seeds_that_agree_to_the_last_problem_still_leave_doubt():
    interval = seeds_interval([0.0, 0.0, 0.0], n=500)
    assert -0.01 < interval.low < 0 < interval.high < 0.01


def test_seeds_that_differ_get_students_t():
    values = [0.2, 0.3, 0.25]
    plain, padded = mean_estimate(values).interval(), seeds_interval(values, n=500)
    assert (padded.low, padded.high) == pytest.approx((plain.low, plain.high), abs=1e-3)


def coverage(draw_interval, truth, repeats=1500):
    generator = np.random.default_rng(7)
    intervals = [draw_interval(generator) for _ in range(repeats)]
    return sum(interval.low <= truth <= interval.high for interval in intervals) / repeats


def eight_completions(generator, num_problems=80):
    """[P, 8] grades whose problems differ in difficulty; the true mean is 0.4."""
    difficulty = generator.beta(0.8, 1.2, size=(num_problems, 1))
    return (generator.random((num_problems, 8)) < difficulty).astype(float)


def test_clustered_interval_covers_the_truth_the_naive_does_not():
    problems = np.repeat(np.arange(80), 8).tolist()
    clustered = coverage(
        lambda g: share_interval(clustered_mean(eight_completions(g).ravel(), problems)),
        truth=0.4,
    )
    naive = coverage(
        lambda g: share_interval(mean_estimate(eight_completions(g).ravel())), truth=0.4
    )
    assert clustered == pytest.approx(0.95, abs=0.02)
    assert naive < 0.8
