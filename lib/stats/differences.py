"""Whether one checkpoint is better than another, and how small a difference could be seen."""

import dataclasses
import math
from collections.abc import Mapping
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from lib.stats.estimates import LEVEL, Estimate, Interval, Z, mean_estimate, padded_mean

PADDING = 2.0
"""Problems that are added to a difference: one each way."""

POWER = 0.8
"""Chance of seeing a difference of the size that is called detectable."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """`after` minus `before`.

    Attributes:
        difference: of the two means, with its own standard error.
        interval: 95 % interval of the difference.
        p_value: two-sided, of the hypothesis that there is no difference.
    """

    difference: Estimate
    interval: Interval
    p_value: float

    def is_worse(self, alpha: float = 0.05) -> bool:
        """Whether `after` is below `before` by more than chance explains."""
        return self.difference.value < 0 and self.p_value < alpha

    def is_better(self, alpha: float = 0.05) -> bool:
        """Whether `after` is above `before` by more than chance explains."""
        return self.difference.value > 0 and self.p_value < alpha


def paired_difference(*, before: Mapping[str, float], after: Mapping[str, float]) -> Difference:
    """Compare two checkpoints on the same problems (arXiv:2411.00640, section 4).

    The difference is taken problem by problem, which removes what makes problems hard or easy for
    both. Interval and p-value are those of Bonett and Price (2012): one gain and one loss are
    added, each as large as the changes are, so that problems of which none changed bound the
    difference too. The p-value is never below 2^(1-m) with m problems that changed: no test by
    random signs can show more (two problems that both improved have no spread, and prove little).

    Args:
        before: score by problem id (0/1, or the mean over a problem's completions).
        after: the same of the other checkpoint.

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
    num_changed = int(np.count_nonzero(changes))
    step = change_size(np.sum(changes**2), num_changed)
    centre, error = padded_mean(
        difference.value, difference.se, difference.n, extremes=(-step, step), padding=PADDING
    )
    floor = 2.0 ** (1 - min(num_changed, 1000))
    return Difference(
        difference=difference,
        interval=_interval(float(centre), float(error)),
        p_value=max(_p_value(float(centre), float(error)), min(1.0, floor)),
    )


def change_size(sum_of_squares: ArrayLike, num_changed: ArrayLike) -> NDArray[np.float64]:
    """Root mean square of the changes that are not 0, and of one change from wrong to right.

    1 where every change is a whole one, as with greedy answers; less where a problem's share of
    right completions moves a little.
    """
    return np.sqrt((np.asarray(sum_of_squares) + 1.0) / (np.asarray(num_changed) + 1.0))


def independent_difference(*, before: Estimate, after: Estimate) -> Difference:
    """Compare two rates when only they are known: se² = se_before² + se_after².

    One right and one wrong problem are added to each (Agresti and Caffo 2000). For the same
    problems this is too wide (their scores go together), never too narrow in practice; it is what
    committed metrics allow. Where an error is unknown nothing is concluded.
    """
    smaller, spread = min(before.n, after.n), math.hypot(before.se, after.se)
    (low, low_error), (high, high_error) = (
        padded_mean(side.value, side.se, side.n, extremes=(0.0, 1.0), padding=PADDING)
        for side in (before, after)
    )
    centre = float(high - low)
    error = math.inf if math.isnan(spread) else math.hypot(float(low_error), float(high_error))
    return Difference(
        difference=Estimate(after.value - before.value, spread, smaller),
        interval=_interval(centre, error),
        p_value=_p_value(centre, error),
    )


def minimum_detectable_difference(*, sd: float, n: int) -> float:
    """The smallest true difference that n problems show with probability `POWER`.

    Args:
        sd: standard deviation over problems of the paired difference (√n times its standard
            error); for two 0/1 scores at most √(share of problems on which they disagree).
        n: number of problems, at least 2.

    Raises:
        ValueError: n < 2.
    """
    if n < 2:
        raise ValueError(f"n={n}; a spread needs at least 2 problems")
    reach = float(stdtrit(n - 1, (1 + LEVEL) / 2)) + NormalDist().inv_cdf(POWER)
    return reach * sd / math.sqrt(n)


def _interval(centre: float, error: float) -> Interval:
    return Interval(max(-1.0, centre - Z * error), min(1.0, centre + Z * error))


def _p_value(centre: float, error: float) -> float:
    """P(|Z| ≥ |z|), both tails."""
    return 2 * NormalDist().cdf(-abs(centre / error))
