"""Means over seeds: intervals, p-values, several claims, and how often the interval covers."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from lib.stats import SeedsMean, holm, seeds_mean

SHAPES = {
    "normal": lambda draw, size: draw.standard_normal(size),
    # A fifth of the seeds end four standard deviations below the others.
    "bimodal": lambda draw, size: draw.standard_normal(size) - 4 * (draw.random(size) < 0.2),
    "outliers": lambda draw, size: draw.standard_normal(size) - 4 * (draw.random(size) < 0.15),
}
MEANS = {"normal": 0.0, "bimodal": -0.8, "outliers": -0.6}


def covered(values: NDArray[np.float64], truth: float) -> float:
    intervals = [seeds_mean(each).interval for each in values]
    return float(np.mean([each.low <= truth <= each.high for each in intervals]))


@pytest.mark.parametrize("shape", SHAPES)
def test_ten_seeds_cover_93_percent_on_skewed_shapes(shape):
    values = SHAPES[shape](np.random.default_rng(0), (20_000, 10))
    assert 0.93 <= covered(values, MEANS[shape]) <= 0.975


def test_seeds_that_agree_prove_no_more_than_their_problems():
    alone = seeds_mean([0.1, 0.1, 0.1])
    bounded = seeds_mean([0.1, 0.1, 0.1], problem_se=[0.03, 0.04, 0.0])
    assert alone.interval.high - 0.1 < 1e-12 and alone.p_value < 1e-6
    assert bounded.interval.high - 0.1 == pytest.approx(1.96 * 0.05 / 3, rel=1e-3)
    assert bounded.p_value == pytest.approx(2 * stats.norm.sf(0.1 / (0.05 / 3)))


def test_interval_and_p_value_agree():
    mean = SeedsMean(0.2, 0.1, 7)
    edge = SeedsMean(mean.interval.high - mean.value, 0.1, 7)
    assert edge.p_value == pytest.approx(0.05)
    assert SeedsMean(-edge.value, 0.1, 7).p_value == pytest.approx(0.05)


@pytest.mark.parametrize(("value", "holds"), [(0.0, True), (0.012, False), (-0.05, False)])
def test_equivalence_needs_the_whole_interval_in_the_margin(value, holds):
    """At 5 %, two one-sided tests are the 90 % interval."""
    mean = SeedsMean(value, 0.005, 10)
    reach = stats.t.ppf(0.95, mean.freedom) * mean.se
    assert (mean.p_equivalent(0.02) < 0.05) == holds == (abs(value) + reach < 0.02)


def test_holm_is_the_textbooks():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == []


@pytest.mark.parametrize("pairs", [[(0.1, 0.1)] * 3, [(0.3, 0.2), (0.4, 0.3), (0.9, 0.8)]])
def test_rounding_is_no_spread_and_no_effect(pairs):
    """0.3 - 0.2 and 0.9 - 0.8 differ by 1e-16."""
    differences = seeds_mean([a - b for a, b in pairs])
    assert differences.se == 0
    assert differences.p_value == (1.0 if pairs[0][0] == pairs[0][1] else 0.0)
    assert seeds_mean([0.1 - 0.1, 0.3 - 0.3, 1e-17]).p_value == 1.0
