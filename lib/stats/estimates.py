"""A number with its uncertainty, and the intervals around it."""

import dataclasses
import math
from collections.abc import Callable, Hashable, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

Statistic = Callable[[NDArray[np.float64]], float]


@dataclasses.dataclass(frozen=True)
class Interval:
    """The range `low` … `high` that covers the truth in a share `level` of all experiments."""

    low: float
    high: float
    level: float = 0.95


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A measured mean.

    Attributes:
        value: the mean.
        se: its standard error; nan where n = 1, since one problem tells nothing of the spread.
        n: how many independent units (problems) it rests on.
    """

    value: float
    se: float
    n: int

    def interval(self, level: float = 0.95) -> Interval:
        """`value` ± t·se with Student's t at n - 1 degrees of freedom; unbounded where n = 1."""
        if self.n < 2:
            return Interval(-math.inf, math.inf, level)
        reach = float(stdtrit(self.n - 1, (1 + level) / 2)) * self.se
        return Interval(self.value - reach, self.value + reach, level)


def mean_estimate(values: ArrayLike) -> Estimate:
    """Mean of one value per problem, with standard error s / √n.

    Args:
        values: [P] one number per problem (0 or 1 for a rate, or a mean over its completions).

    Raises:
        ValueError: no values.
    """
    per_problem = np.asarray(values, dtype=np.float64)
    return clustered_mean(per_problem, range(per_problem.size))


def clustered_mean(values: ArrayLike, clusters: Sequence[Hashable]) -> Estimate:
    """Mean over completions, with the standard error clustered by problem (arXiv:2411.00640).

    With residuals summed per problem, se² = P / (P - 1) · Σ_p (Σ_i (x_pi - mean))² / N². One
    completion per problem gives the ordinary s / √n; copies of a completion change nothing.

    Args:
        values: [N] one number per completion.
        clusters: [N] the problem of each completion; `Estimate.n` counts the distinct ones.

    Raises:
        ValueError: no values, or another number of clusters than of values.
    """
    flat = np.asarray(values, dtype=np.float64)
    if flat.ndim != 1 or flat.size == 0:
        raise ValueError(f"values has shape {flat.shape}; expected [N] with N of at least 1")
    if len(clusters) != flat.size:
        raise ValueError(f"{flat.size} values but {len(clusters)} clusters")
    numbers = {cluster: number for number, cluster in enumerate(dict.fromkeys(clusters))}
    mean = float(flat.mean())
    residuals = np.bincount([numbers[cluster] for cluster in clusters], weights=flat - mean)
    count = len(numbers)
    if count == 1:
        return Estimate(mean, math.nan, 1)
    spread = float(np.sqrt(count / (count - 1) * np.sum(residuals**2)))
    return Estimate(mean, spread / flat.size, count)


def wilson_interval(*, successes: int, n: int, level: float = 0.95) -> Interval:
    """Score interval of a rate (Wilson 1927); stays inside [0, 1] and is honest at 0 of n.

    Raises:
        ValueError: n < 1, or successes outside 0 … n.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}; expected 0 ≤ successes ≤ n and n ≥ 1")
    z = NormalDist().inv_cdf((1 + level) / 2)
    rate = successes / n
    centre = (rate + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z / (1 + z**2 / n) * math.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2))
    low = 0.0 if successes == 0 else max(0.0, centre - reach)
    high = 1.0 if successes == n else min(1.0, centre + reach)
    return Interval(low, high, level)


def bootstrap_interval(
    values: ArrayLike,
    *,
    seed: int,
    statistic: Statistic | None = None,
    num_resamples: int = 2000,
    level: float = 0.95,
) -> Interval:
    """Percentile bootstrap over problems, for statistics that have no formula.

    Args:
        values: [P] or [P, …]; whole rows (problems) are drawn with replacement.
        seed: the same seed gives the same interval.
        statistic: maps resampled values to a number; None is the mean.
        num_resamples: how often to draw; 2000 fix the ends to about a tenth of the width.
        level: confidence level.

    Raises:
        ValueError: no rows.
    """
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim == 0 or len(rows) == 0:
        raise ValueError("values is empty; the bootstrap needs at least one problem")
    of = statistic or (lambda resampled: float(resampled.mean()))
    generator = np.random.default_rng(seed)
    draws = [of(rows[generator.integers(len(rows), size=len(rows))]) for _ in range(num_resamples)]
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), level)
