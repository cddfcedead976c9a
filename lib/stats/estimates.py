"""Measured means with their standard errors and intervals."""

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
"""Confidence level."""

Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""Half the width of that interval in standard errors, 1.96."""


@dataclasses.dataclass(frozen=True)
class Interval:
    """A confidence interval: it covers the truth in `LEVEL` of all experiments."""

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
    """Return the rate `name` of metrics {name, "<name>_se", "n"}; a missing error is NaN."""
    return Estimate(numbers[name], numbers.get(f"{name}_se", math.nan), int(numbers.get("n", 1)))


def mean_estimate(values: ArrayLike) -> Estimate:
    """Average one value per problem [P], with standard error s / √n; NaN for one problem."""
    return clustered_mean(values, range(np.size(values)))


def clustered_mean(values: ArrayLike, clusters: Sequence[Hashable]) -> Estimate:
    """Average completions, with the standard error clustered by problem (arXiv:2411.00640).

    se² = P / (P - 1) · Σ_p (Σ_i (x_pi - mean))² / N², for N completions i of P problems p. One
    completion per problem gives s / √n; NaN for a single problem.

    Args:
        values: [N] one number per completion.
        clusters: [N] the problem of each completion; `n` of the result is P, the distinct ones.

    Raises:
        ValueError: no values, or not one cluster per value.
    """
    flat = np.asarray(values, dtype=np.float64)
    if flat.size == 0:
        raise ValueError("no values to average")
    numbers = {cluster: number for number, cluster in enumerate(dict.fromkeys(clusters))}
    mean = float(flat.mean())
    # [P] Σ_i (x_pi − mean); raises ValueError if there is not one cluster per value.
    residuals = np.bincount([numbers[cluster] for cluster in clusters], weights=flat - mean)
    num_problems = len(numbers)
    if num_problems == 1:
        return Estimate(mean, math.nan, 1)
    spread = float(np.sqrt(num_problems / (num_problems - 1) * np.sum(residuals**2)))
    return Estimate(mean, spread / flat.size, num_problems)


def share_interval(estimate: Estimate) -> Interval:
    """Return the 95 % interval of a rate, or of any mean of values in [0, 1] (pass@k, maj@k).

    Agresti and Coull (1998), with problems as trials: add z²/2 problems of value 1 and z²/2 of
    value 0 (z = 1.96), then take `mean ± z·se`, cut to [0, 1]: it has a width even if all problems
    are right. bench/coverage/README.md has its coverage.
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

    The error is then above 0 even if all problems have equal values.

    Args:
        value, se, n: mean, standard error and number of problems; numbers, or arrays of one shape.
            An unknown error, NaN, is the largest that values in [0, 1] may have.
    """
    low, high = (np.asarray(extreme, dtype=np.float64) for extreme in extremes)
    mean, count = np.asarray(value, dtype=np.float64), np.asarray(n, dtype=np.float64)
    error = np.asarray(se, dtype=np.float64)
    # Σ x² over the n problems, since se² = s² / n; with an unknown error as if all values were 0
    # or ±1.
    squares = count * np.where(
        np.isnan(error), np.abs(mean), (count - 1) * np.nan_to_num(error) ** 2 + mean**2
    )
    total = count + padding
    padded = (count * mean + padding / 2 * (low + high)) / total
    variance = (squares + padding / 2 * (low**2 + high**2)) / total - padded**2
    # Rounding may leave a variance of −1e-17.
    return padded, np.sqrt(np.maximum(variance, 0.0) / total)
