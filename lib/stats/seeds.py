"""Statistics over seeds: interval and p-values of a mean, and Holm's correction for several claims.

The unit of random sampling is the seed. It decides weights, order and sampling, and in studies of
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
        num_seeds: the number of seeds, S of at least 3 (a study's minimum).
        problem_se: its standard error over problems, 0 if the value is not a mean over problems.
            It bounds interval and p-values from below: seeds that agree by accident prove no more
            than their problems do.
    """

    value: float
    se: float
    num_seeds: int
    problem_se: float = 0.0

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the standard error: (S + 1) / 2.

        It is about half of S - 1, which would be right for normal values. Results of seeds are
        often skewed (one or two are far from the rest), and the variance of s² grows with the
        kurtosis. docs/statistics.md has the coverage.
        """
        return (self.num_seeds + 1) / 2

    @property
    def interval(self) -> Interval:
        """The 95 % interval by Student's t."""
        over_seeds = float(stdtrit(self.freedom, (1 + LEVEL) / 2)) * self.se
        reach = max(over_seeds, Z * self.problem_se)
        return Interval(self.value - reach, self.value + reach)

    @property
    def p_value(self) -> float:
        """The two-sided p-value of the hypothesis "the true mean is 0"."""
        return min(1.0, 2 * min(self.p_below(0.0), self.p_above(0.0)))

    def p_above(self, bound: float) -> float:
        """Return the one-sided p-value of the hypothesis "the true mean is at most `bound`"."""
        below = bound - self.value
        # `stdtr` is the distribution function of Student's t. se is 0 if all values are equal: the
        # p-value is then 0 or 1.
        over_seeds = stdtr(self.freedom, below / self.se) if self.se else float(below >= 0)
        # `ndtr`, the normal distribution: with many problems, t differs little from it.
        over_problems = ndtr(below / self.problem_se) if self.problem_se else float(below >= 0)
        return float(max(over_seeds, over_problems))

    def p_below(self, bound: float) -> float:
        """Return the one-sided p-value of the hypothesis "the true mean is at least `bound`"."""
        # The mirror image of `p_above`.
        return dataclasses.replace(self, value=-self.value).p_above(-bound)

    def p_equivalent(self, margin: float) -> float:
        """Return the p-value of the hypothesis "the true mean is `margin` or more from 0".

        A small one shows equivalence to 0. Two one-sided tests (Schuirmann 1987): the larger of
        both p-values.
        """
        return max(self.p_above(-margin), self.p_below(margin))


def seeds_mean(values: ArrayLike, *, problem_se: Sequence[float] = ()) -> SeedsMean:
    """Average one value per seed.

    Args:
        values: [S] the rate or the paired difference of each seed.
        problem_se: [S] standard error of each seed over its own problems; the mean's is
            √(Σ se²) / S. Empty if the value is not a mean over problems.
    """
    each = np.asarray(values, dtype=np.float64)
    se = float(each.std(ddof=1)) / math.sqrt(each.size)
    # hypot(*problem_se) = √(Σ se²), and 0 without arguments.
    return SeedsMean(float(each.mean()), se, each.size, math.hypot(*problem_se) / each.size)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of several claims for multiple testing (Holm 1979).

    Claims with an adjusted p-value below 0.05 include a false one in at most 5 % of experiments.

    Returns:
        The adjusted p-values in the order of `p_values`.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    # From the smallest p-value (rank 0) to the largest; `place` is its index in `p_values`.
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        # Step-down: a p-value is multiplied by m − rank, and no later one may be smaller.
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted
