import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.stats.student_t import critical_value, two_sided_p

# Printed tables of Student's t (two-sided), for example in Abramowitz and Stegun, table 26.10.
TABLE = [
    (1, 0.95, 12.706),
    (2, 0.95, 4.303),
    (5, 0.90, 2.015),
    (10, 0.95, 2.228),
    (29, 0.95, 2.045),
    (30, 0.99, 2.750),
    (120, 0.95, 1.980),
]


@pytest.mark.parametrize(("df", "level", "expected"), TABLE)
def test_critical_values_are_those_of_the_printed_table(df, level, expected):
    assert critical_value(level=level, df=df) == pytest.approx(expected, abs=6e-4)


def test_many_degrees_of_freedom_approach_the_normal_distribution():
    assert critical_value(level=0.95, df=5000) == pytest.approx(1.96, abs=1e-3)


@given(st.integers(1, 60), st.floats(0.01, 0.999))
def test_p_value_at_the_critical_value_is_one_minus_the_level(df, level):
    assert two_sided_p(critical_value(level=level, df=df), df=df) == pytest.approx(1 - level)


@given(st.integers(1, 40), st.floats(-20, 20))
def test_p_value_matches_the_integrated_density(df, statistic):
    scale = math.gamma((df + 1) / 2) / math.gamma(df / 2) / math.sqrt(df * math.pi)
    steps = 2000
    width = abs(statistic) / steps
    mass = sum((1 + ((step + 0.5) * width) ** 2 / df) ** (-(df + 1) / 2) for step in range(steps))
    assert two_sided_p(statistic, df=df) == pytest.approx(1 - 2 * scale * mass * width, abs=1e-3)


@pytest.mark.parametrize("level", [0, 1, 1.5])
def test_a_level_that_is_no_share_is_refused(level):
    with pytest.raises(ValueError, match="between 0 and 1"):
        critical_value(level=level, df=3)
