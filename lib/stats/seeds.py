"""Statistics over seeds: interval and p-values of a mean, and Holm's correction for several claims.

The unit of random sampling is the seed: it decides weights, order and sampling, and in studies of
generated problems the problems too.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, stdtr, stdtrit

from lib.stats.estimates import LEVEL, Interval, Z


@dataclasses.dataclass(frozen=True)
class SeedsMean:
    """The mean over seeds of a rate or of a difference.

    Attributes:
        value: the mean.
        se: its standard error over seeds.
        num_seeds: S, at least 3.
        problem_se: its standard error over problems, 0 if the value is not a mean over problems: a
            lower bound, since seeds that agree by accident prove no more than their problems do.
    """

    value: float
    se: float
    num_seeds: int
    problem_se: float = 0.0

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the standard error: (S + 1) / 2.

        S - 1 would be right for normal values. Results of seeds are often skewed, and the variance
        of s² grows with the kurtosis. bench/coverage/README.md has the interval's coverage.
        """
        return (self.num_seeds + 1) / 2

    @property
    def interval(self) -> Interval:
        """The 95 % interval by Student's t, or that over problems if it is wider."""
        over_seeds = float(stdtrit(self.freedom, (1 + LEVEL) / 2)) * self.se
        reach = max(over_seeds, Z * self.problem_se)
        return Interval(self.value - reach, self.value + reach)

    @property
    def p_value(self) -> float:
        """The two-sided p-value of the hypothesis "the true mean is 0"."""
        return min(1.0, 2 * min(self.p_below(0.0), self.p_above(0.0)))

    def p_above(self, bound: float) -> float:
        """Return the one-sided p-value of the hypothesis "the true mean is at most `bound`".

        The larger of two p-values: by the error over seeds, and by the error over problems.
        """
        gap = bound - self.value
        # Without a spread, the p-value is 1 if the mean is at most the bound, else 0.
        over_seeds = stdtr(self.freedom, gap / self.se) if self.se else float(gap >= 0)
        over_problems = ndtr(gap / self.problem_se) if self.problem_se else float(gap >= 0)
        return float(max(over_seeds, over_problems))

    def p_below(self, bound: float) -> float:
        """Return the one-sided p-value of the hypothesis "the true mean is at least `bound`"."""
        return dataclasses.replace(self, value=-self.value).p_above(-bound)

    def p_equivalent(self, margin: float) -> float:
        """Return the p-value of the hypothesis "the true mean is `margin` or more from 0".

        A small one shows equivalence to 0 (two one-sided tests, Schuirmann 1987).
        """
        return max(self.p_above(-margin), self.p_below(margin))


def seeds_mean(values: ArrayLike, *, problem_se: Sequence[float] = ()) -> SeedsMean:
    """Return the mean over seeds, with its standard errors over seeds and over problems.

    Args:
        values: [S] the rate or the paired difference of each seed.
        problem_se: [S] standard error of each seed's value over its own problems; or empty.
    """
    # Below 1e-12 is rounding, which would pass for a spread where all seeds are equal.
    per_seed = np.asarray(values, dtype=np.float64).round(12)
    num_seeds = per_seed.size
    se = round(float(per_seed.std(ddof=1)) / math.sqrt(num_seeds), 12)
    mean = round(float(per_seed.mean()), 12)
    return SeedsMean(mean, se, num_seeds, math.hypot(*problem_se) / num_seeds)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of several claims for multiple testing (Holm 1979), in their order.

    If claims below 0.05 are accepted, a false one is among them in at most 5 % of experiments.
    """
    num_claims = len(p_values)
    adjusted, largest = [0.0] * num_claims, 0.0
    order = sorted(range(num_claims), key=p_values.__getitem__)
    for rank, index in enumerate(order):
        # The maximum keeps the order: a larger p-value stays the larger.
        largest = max(largest, min(1.0, (num_claims - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
