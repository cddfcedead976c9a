"""Every interval covers as it claims: the committed simulation, and a small one afresh."""

import numpy as np
import pytest

from tests.bench.intervals.__main__ import HERE, SIZES, page, simulate
from tests.bench.results import read

RESULTS = read(HERE)
LOWEST = 0.925


def size(name):
    return int(name.rsplit("n=", 1)[1])


def test_the_page_is_made_from_the_results():
    assert (HERE / "README.md").read_text(encoding="utf-8") == page(RESULTS)
    assert {size(name) for name in RESULTS} == set(SIZES)


@pytest.mark.parametrize("n", SIZES)
def test_every_interval_covers_95_of_100_on_the_mean_and_never_far_fewer(n):
    for name, covered in RESULTS.items():
        if size(name) == n:
            # With 40 problems or fewer, pass@k of problems alike in difficulty covers 97.
            assert 0.935 <= covered["mean"] <= (0.971 if n <= 40 else 0.965), name
            assert covered["lowest"] >= LOWEST, name


def afresh():
    return dict(simulate(repeats=400, sizes=(40,), thin=9))


def test_simulated_afresh_every_interval_covers():
    for name, (even, edge) in afresh().items():
        assert 0.93 <= even.mean() <= 0.98, name
        # 400 experiments have a standard error of a point; the lowest of many rates is 3 below.
        assert min(even.min(), edge.min()) >= 0.905, name


def test_without_the_added_problems_the_simulation_shows_the_gap(monkeypatch):
    def bounds(value, se, n, **_):
        reach = 1.96 * np.asarray(se)
        return value - reach, value + reach

    monkeypatch.setattr("tests.bench.intervals.__main__.padded_bounds", bounds)
    covered = afresh()
    for name in ("rate of problems, n=40", "pass@1, spread 0.3, n=40"):
        assert covered[name][1].min() < 0.5, name
