"""Test the difference between two checkpoints; compute the smallest detectable difference."""

import dataclasses
import math
from collections.abc import Mapping
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from lib.stats.estimates import LEVEL, Estimate, Interval, Z, mean_estimate, padded_mean

PADDING = 2.0
"""Problems added: a gain and a loss to paired differences, a right and a wrong one to a rate."""

POWER = 0.8
"""Chance that an experiment shows a difference of the detectable size."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference between two checkpoints, `after` minus `before`, with its significance.

    Attributes:
        difference: of the two means, with its own standard error.
        p_value: two-sided; the null hypothesis is no difference.
    """

    difference: Estimate
    interval: Interval
    p_value: float

    @property
    def detectable(self) -> float:
        """The smallest true difference that a test on as many problems finds with chance `POWER`.

        NaN for a single problem, or if all changes are equal.
        """
        # `not se > 0` also catches NaN.
        if not self.difference.se > 0:
            return math.nan
        # (t + z) · se: a test finds what is measured beyond t standard errors, with n - 1 degrees
        # of freedom; if the true difference is larger by z, this happens with chance `POWER`.
        quantile = float(stdtrit(self.difference.n - 1, (1 + LEVEL) / 2))
        return (quantile + NormalDist().inv_cdf(POWER)) * self.difference.se

    def is_worse(self, alpha: float = 0.05) -> bool:
        """Return True if `after` is significantly below `before`, at level `alpha`."""
        return self.difference.value < 0 and self.p_value < alpha

    def is_better(self, alpha: float = 0.05) -> bool:
        """Return True if `after` is significantly above `before`, at level `alpha`."""
        return self.difference.value > 0 and self.p_value < alpha


def paired_difference(*, before: Mapping[str, float], after: Mapping[str, float]) -> Difference:
    """Compare two checkpoints on the same problems (arXiv:2411.00640, section 4).

    Differences are taken per problem. Interval and p-value follow Bonett and Price (2012): they are
    computed after adding two problems, a gain and a loss of typical size. The p-value is at least
    2^(1-m) for m changed problems, the smallest one of a sign test: two problems that both improved
    have no spread, but prove little.

    Args:
        before: problem id → score (0/1, or the mean over a problem's completions).
        after: the other checkpoint's scores of the same problems.

    Raises:
        ValueError: the problems differ, or there are none.
    """
    if before.keys() != after.keys():
        raise ValueError(
            f"not the same problems: {len(before.keys() - after.keys())} only before, "
            f"{len(after.keys() - before.keys())} only after"
        )
    # [P]
    changes = np.array([after[problem] - before[problem] for problem in before])
    difference = mean_estimate(changes)
    num_changed = int(np.count_nonzero(changes))
    size = change_size(np.sum(changes**2), num_changed)
    centre, error = padded_mean(
        difference.value, difference.se, difference.n, extremes=(-size, size), padding=PADDING
    )
    # 2^-1075 underflows to 0. Without any change it is 2, cut to 1 below.
    floor = 2.0 ** (1 - min(num_changed, 1000))
    return Difference(
        difference=difference,
        interval=_interval(float(centre), float(error)),
        p_value=max(_p_value(float(centre), float(error)), min(1.0, floor)),
    )


def change_size(sum_of_squares: ArrayLike, num_changed: ArrayLike) -> NDArray[np.float64]:
    """Return the root mean square of the nonzero changes and of one added change of 1.

    The arguments, of any one shape, are Σ change² and the number of nonzero changes. The result is
    1 for greedy answers, and less if the problems' rates change by parts.
    """
    return np.sqrt((np.asarray(sum_of_squares) + 1.0) / (np.asarray(num_changed) + 1.0))


def independent_difference(*, before: Estimate, after: Estimate) -> Difference:
    """Compare two rates without scores per problem: se² = se_before² + se_after².

    One right and one wrong problem are added to each (Agresti and Caffo 2000). If both rates are of
    the same problems, the interval is too wide: committed metrics hold no scores per problem. If a
    rate has no standard error (NaN), the interval is [−1, 1].
    """
    # The smaller n gives fewer degrees of freedom, to be cautious.
    smaller_n, se = min(before.n, after.n), math.hypot(before.se, after.se)
    (old, old_error), (new, new_error) = (
        padded_mean(side.value, side.se, side.n, extremes=(0.0, 1.0), padding=PADDING)
        for side in (before, after)
    )
    centre = float(new - old)
    # Infinite: the interval is then clipped to [−1, 1], and the p-value is 1.
    error = math.inf if math.isnan(se) else math.hypot(float(old_error), float(new_error))
    return Difference(
        difference=Estimate(after.value - before.value, se, smaller_n),
        interval=_interval(centre, error),
        p_value=_p_value(centre, error),
    )


def _interval(centre: float, error: float) -> Interval:
    """Return `centre ± z·error`, clipped to [−1, 1], the range of a difference of two shares."""
    return Interval(max(-1.0, centre - Z * error), min(1.0, centre + Z * error))


def _p_value(centre: float, error: float) -> float:
    """Return the two-sided p-value of z = centre / error, for a standard normal z."""
    return 2 * NormalDist().cdf(-abs(centre / error))
