"""Simulate how often the printed 95 % intervals cover the truth, beside other intervals over seeds.

    python -m bench.coverage

writes results.json in this folder, and prints the tables of README.md: three minutes.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lib.report.text import Table, markdown_table, percent
from lib.stats import seeds_mean
from tests.lib.stats import test_coverage as problems
from tests.lib.stats.test_seeds import MEANS, SHAPES

RESULTS = Path(__file__).parent / "results.json"
SIZES = (30, 500, 1319)
"""Problems of an experiment."""
REPEATS = 4_000
SEEDS = (3, 5, 10, 20)
EXPERIMENTS = 40_000
RESAMPLED = 1_000
"""Experiments of the bootstrap intervals, which draw as many samples of each."""

Array = NDArray[np.float64]
Method = Callable[[Array], tuple[Array, Array]]
"""[experiments, seeds] values → low and high bounds."""


def students_t(values: Array) -> tuple[Array, Array]:
    return around(values, stats.t.ppf(0.975, values.shape[1] - 1))


def ours(values: Array) -> tuple[Array, Array]:
    bounds = [seeds_mean(each).interval for each in values]
    return np.array([each.low for each in bounds]), np.array([each.high for each in bounds])


def bootstrap_t(values: Array) -> tuple[Array, Array]:
    """Return symmetric bootstrap-t intervals: the 95 % quantile of |t| over resampled seeds."""
    draws = np.random.default_rng(1)
    num_seeds = values.shape[1]
    reaches = []
    for each in values:
        sample = each[draws.integers(num_seeds, size=(RESAMPLED, num_seeds))]
        spread = sample.std(axis=1, ddof=1)
        kept = spread > 0
        t = abs(sample.mean(axis=1) - each.mean())[kept] / spread[kept] * math.sqrt(num_seeds)
        reaches.append(np.quantile(t, 0.95))
    return around(values, np.array(reaches))


def bca(values: Array) -> tuple[Array, Array]:
    found = stats.bootstrap(
        (values,), np.mean, axis=1, n_resamples=RESAMPLED, batch=100, rng=1, method="BCa"
    ).confidence_interval
    return found.low, found.high


def around(values: Array, reach: float | Array) -> tuple[Array, Array]:
    """Return mean ± reach times the standard error."""
    error = reach * values.std(axis=1, ddof=1) / math.sqrt(values.shape[1])
    return values.mean(axis=1) - error, values.mean(axis=1) + error


def over_seeds(method: Method, num_seeds: int, experiments: int) -> dict[str, float]:
    """Return coverage by shape, and the largest width relative to Student's t."""
    found, widths = {}, []
    for shape, draw in SHAPES.items():
        values = draw(np.random.default_rng(0), (experiments, num_seeds))
        low, high = method(values)
        found[shape] = float(np.mean((low <= MEANS[shape]) & (MEANS[shape] <= high)))
        usual = np.subtract(*students_t(values)[::-1])
        widths.append(float(np.mean(high - low) / np.mean(usual)))
    return {**found, "width": max(widths)}


def over_problems(size: int) -> dict[str, dict[str, float]]:
    """Return by interval: the mean coverage on the even grid of rates, and the lowest of all."""
    problems.SIZE, problems.REPEATS, problems.THIN, problems.SEEDS = size, REPEATS, 1, ()
    problems.CHANGED = (0.05, 0.2, 0.4, 0.6)
    return {
        name: {"mean": float(even.mean()), "lowest": float(min(even.min(), edge.min()))}
        for name, (even, edge) in problems.simulate()
    }


ROWS = {
    "students_t": "Student's t, S − 1 degrees of freedom",
    "ours": "Student's t, (S + 1) / 2 degrees of freedom",
    "bootstrap_t": "symmetric bootstrap-t (1,000 experiments)",
    "bca": "BCa bootstrap (the same)",
    "rate of problems": "rate of problems",
    "pass@1, spread 1.0": "pass@1, spread 1.0",
    "paired difference, greedy_covered": "paired difference, greedy",
    "compare-logs, paired difference": "the same by compare-logs",
    "compare-logs, no difference beyond ±m": "its verdict, no difference beyond ±m",
}
"""Interval → its name in README.md; the others are not shown."""


def seeds_table(results: dict[str, dict[str, float]]) -> str:
    """Return the table of coverage over seeds, as in README.md."""
    rows = []
    for name, row in results.items():
        method, seeds = name.split()
        shares = [percent(row[shape]) for shape in SHAPES]
        rows.append((ROWS[method], seeds, *shares, f"{row['width']:.2f}"))
    header = ("interval", "seeds", *SHAPES, "width")
    return markdown_table(Table("", header, tuple(rows)))


def problems_table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the table of coverage over problems, as in README.md."""
    rows = []
    for name in (name for name in next(iter(results.values())) if name in ROWS):
        found = [each[name] for each in results.values()]
        cells = [f"{percent(each['mean'])} ({percent(each['lowest'])})" for each in found]
        rows.append((ROWS[name], *cells))
    header = ("interval", *(f"n = {int(size):,}" for size in results))
    return markdown_table(Table("", header, tuple(rows)))


@click.command(help=__doc__)
def main() -> None:
    rows = [(method, seeds, EXPERIMENTS) for seeds in SEEDS for method in (students_t, ours)]
    rows += [(method, 10, RESAMPLED) for method in (bootstrap_t, bca)]
    results: dict[str, Any] = {
        "seeds": {
            f"{method.__name__} {seeds}": over_seeds(method, seeds, experiments)
            for method, seeds, experiments in rows
        },
        "problems": {str(size): over_problems(size) for size in SIZES},
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    click.echo(problems_table(results["problems"]))
    click.echo(seeds_table(results["seeds"]))


if __name__ == "__main__":
    main()
