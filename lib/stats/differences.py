"""Whether one checkpoint is better than another, and how small a difference could be seen."""

import dataclasses
import math
from collections.abc import Mapping
from statistics import NormalDist

import numpy as np
from scipy.special import stdtr, stdtrit

from lib.stats.estimates import Estimate, Interval, mean_estimate


@dataclasses.dataclass(frozen=True)
class Difference:
    """`after` minus `before`.

    Attributes:
        before, after: the two means.
        difference: their difference with its own standard error.
        interval: 95 % interval of the difference.
        p_value: two-sided, of the hypothesis that there is no difference.
    """

    before: float
    after: float
    difference: Estimate
    interval: Interval
    p_value: float

    def is_worse(self, alpha: float = 0.05) -> bool:
        """Whether `after` is below `before` by more than chance explains."""
        return self.difference.value < 0 and self.p_value < alpha

    def is_better(self, alpha: float = 0.05) -> bool:
        """Whether `after` is above `before` by more than chance explains."""
        return self.difference.value > 0 and self.p_value < alpha


def paired_difference(
    *, before: Mapping[str, float], after: Mapping[str, float], level: float = 0.95
) -> Difference:
    """Compare two checkpoints on the same problems (arXiv:2411.00640, section 4).

    The difference is taken problem by problem, which removes what makes problems hard or easy for
    both. The p-value is that of the t-test on the differences, but never below 2^(1-m) with m
    problems that changed: no test by random signs can show more (two problems that both improved
    have no spread, and prove little).

    Args:
        before: score by problem id (0/1, or the mean over a problem's completions).
        after: the same of the other checkpoint.
        level: confidence level of the interval.

    Raises:
        ValueError: the problems differ, or there are none.
    """
    if before.keys() != after.keys():
        raise ValueError(
            f"not the same problems: {len(before.keys() - after.keys())} only before, "
            f"{len(after.keys() - before.keys())} only after"
        )
    changes = np.array([after[problem] - before[problem] for problem in before])
    difference = mean_estimate(changes)
    floor = 2.0 ** (1 - min(int(np.count_nonzero(changes)), 1000))
    return Difference(
        before=math.fsum(before.values()) / len(before),
        after=math.fsum(after.values()) / len(after),
        difference=difference,
        interval=difference.interval(level),
        p_value=max(_p_value(difference), min(1.0, floor)),
    )


def independent_difference(*, before: Estimate, after: Estimate, level: float = 0.95) -> Difference:
    """Compare two estimates when only they are known: se² = se_before² + se_after².

    For the same problems this is too wide (their scores go together), never too narrow in
    practice; it is what committed metrics allow.
    """
    smaller = min(before.n, after.n)
    spread = math.hypot(before.se, after.se)
    difference = Estimate(after.value - before.value, spread, smaller)
    return Difference(
        before=before.value,
        after=after.value,
        difference=difference,
        interval=difference.interval(level),
        p_value=_p_value(difference),
    )


def minimum_detectable_difference(
    *, sd: float, n: int, power: float = 0.8, alpha: float = 0.05
) -> float:
    """The smallest true difference that n problems show with probability `power`.

    Args:
        sd: standard deviation over problems of the paired difference (√n times its standard
            error); for two 0/1 scores at most √(share of problems on which they disagree).
        n: number of problems, at least 2.
        power: chance of seeing a difference of that size.
        alpha: chance of seeing one where there is none.

    Raises:
        ValueError: n < 2.
    """
    if n < 2:
        raise ValueError(f"n={n}; a spread needs at least 2 problems")
    reach = float(stdtrit(n - 1, 1 - alpha / 2)) + NormalDist().inv_cdf(power)
    return reach * sd / math.sqrt(n)


def _p_value(difference: Estimate) -> float:
    if difference.n < 2 or math.isnan(difference.se) or difference.value == 0:
        return 1.0
    if difference.se == 0:
        return 0.0
    # P(|T| ≥ |t|), both tails. Small benchmarks need Student's t: with AIME's 30 problems 1.96
    # standard errors are not 95 %.
    return float(2 * stdtr(difference.n - 1, -abs(difference.value / difference.se)))
