"""Measured means with their standard errors and intervals."""

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
"""Confidence level: share of experiments whose interval covers the truth."""

Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""Half the width of that interval in standard errors, 1.96."""


@dataclasses.dataclass(frozen=True)
class Interval:
    """A confidence interval, `low` … `high`: it covers the truth in `LEVEL` of all experiments."""

    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A measured mean.

    Attributes:
        value: the mean.
        se: its standard error; NaN for n = 1, where the spread is unknown.
        n: number of independent units (problems).
    """

    value: float
    se: float
    n: int


def rate_estimate(numbers: Mapping[str, float], name: str) -> Estimate:
    """Return the rate `name` of a mode's metrics: {name, "<name>_se", "n"}.

    The metrics have no standard error of a single problem, or of a rate measured elsewhere: NaN.
    """
    return Estimate(numbers[name], numbers.get(f"{name}_se", math.nan), int(numbers.get("n", 1)))


def mean_estimate(values: ArrayLike) -> Estimate:
    """Average one value per problem, with standard error s / √n.

    Args:
        values: [P] one number per problem (0 or 1 for a rate, or a mean over its completions).

    Raises:
        ValueError: no values.
    """
    per_problem = np.asarray(values, dtype=np.float64)
    return clustered_mean(per_problem, range(per_problem.size))


def clustered_mean(values: ArrayLike, clusters: Sequence[Hashable]) -> Estimate:
    """Average completions, with the standard error clustered by problem (arXiv:2411.00640).

    With residuals summed per problem, se² = P / (P - 1) · Σ_p (Σ_i (x_pi - mean))² / N². One
    completion per problem gives the ordinary s / √n; copying every completion k times changes
    nothing.

    Args:
        values: [N] one number per completion.
        clusters: [N] the problem of each completion; `Estimate.n` counts the distinct ones.

    Raises:
        ValueError: no values, or not one cluster per value.
    """
    flat = np.asarray(values, dtype=np.float64)
    if flat.size == 0:
        raise ValueError("no values to average")
    # Clusters by number, in the order of their first completion.
    numbers = {cluster: number for number, cluster in enumerate(dict.fromkeys(clusters))}
    mean = float(flat.mean())
    # [P] Σ_i (x_pi − mean): `bincount` adds up the weights of each cluster number.
    residuals = np.bincount([numbers[cluster] for cluster in clusters], weights=flat - mean)
    count = len(numbers)
    if count == 1:
        return Estimate(mean, math.nan, 1)
    # N times the standard error.
    spread = float(np.sqrt(count / (count - 1) * np.sum(residuals**2)))
    return Estimate(mean, spread / flat.size, count)


def share_interval(estimate: Estimate) -> Interval:
    """Return the interval of a rate, or of any mean of shares (pass@k, maj@k), inside [0, 1].

    Agresti and Coull (1998), with problems as trials: add z²/2 wholly right and z²/2 wholly wrong
    problems, then take `mean ± z·se`. The interval has a width at 0 and 1 too.
    docs/statistics.md has its coverage.
    """
    mean, error = padded_mean(
        estimate.value, estimate.se, estimate.n, extremes=(0.0, 1.0), padding=Z**2
    )
    return Interval(max(0.0, float(mean - Z * error)), min(1.0, float(mean + Z * error)))


def padded_mean(
    value: ArrayLike,
    se: ArrayLike,
    n: ArrayLike,
    *,
    extremes: tuple[ArrayLike, ArrayLike],
    padding: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard error after adding `padding` problems, half at each of `extremes`.

    The error is then above 0 even if all problems have equal values. Every argument but `padding`
    may be an array. An unknown error is NaN: there is one problem, or the metrics lack it. It is
    replaced by the error of values that are all 0 or 1, the largest for values in [0, 1].
    """
    low, high = (np.asarray(extreme, dtype=np.float64) for extreme in extremes)
    mean, count = np.asarray(value, dtype=np.float64), np.asarray(n, dtype=np.float64)
    error = np.asarray(se, dtype=np.float64)
    # Σ x² over the n problems. With a known error: n · ((n − 1) · se² + mean²), since se² = s² / n.
    # With an unknown one: n · |mean|, which is Σ x² if all values are 0 or 1 (or all 0 or −1).
    squares = count * np.where(
        np.isnan(error), np.abs(mean), (count - 1) * np.nan_to_num(error) ** 2 + mean**2
    )
    total = count + padding
    padded = (count * mean + padding / 2 * (low + high)) / total
    # Variance of all n + padding values: mean of squares minus square of the mean.
    variance = (squares + padding / 2 * (low**2 + high**2)) / total - padded**2
    # Rounding may leave −1e-17.
    return padded, np.sqrt(np.maximum(variance, 0.0) / total)
