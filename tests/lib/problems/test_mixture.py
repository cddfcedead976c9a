import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.problems.mixture import draw, mixture_counts

SOURCES = st.lists(
    st.tuples(st.integers(1, 10_000), st.floats(0.01, 10) | st.just("all")), min_size=1, max_size=5
)


@pytest.mark.parametrize(
    ("available", "weights", "limit", "counts"),
    [
        ([100, 50], ["all", "all"], "all", [100, 50]),
        ([100, 50], [1.0, 1.0], "all", [50, 50]),
        ([100, 50], [3.0, 1.0], "all", [100, 33]),
        ([100, 50], [0.3, 0.1], "all", [100, 33]),
        ([100, 50, 7], [1.0, 1.0, "all"], "all", [50, 50, 7]),
        ([100, 50], ["all", "all"], 30, [20, 10]),
        ([100, 50], [1.0, 1.0], 31, [16, 15]),
        ([100], [2.5], "all", [100]),
        ([100], ["all"], 1000, [100]),
        ([0, 10], [1.0, "all"], "all", [0, 10]),
    ],
)
def test_sources_stand_in_the_ratio_of_their_weights(available, weights, limit, counts):
    assert mixture_counts(available, weights, limit=limit) == counts


@given(SOURCES, st.integers(0, 20_000) | st.just("all"))
def test_no_source_is_used_twice_and_a_limit_is_met_exactly(sources, limit):
    available, weights = [count for count, _ in sources], [weight for _, weight in sources]
    counts = mixture_counts(available, weights, limit=limit)
    unlimited = mixture_counts(available, weights, limit="all")
    assert all(0 <= count <= most for count, most in zip(counts, available, strict=True))
    assert sum(counts) == (sum(unlimited) if limit == "all" else min(limit, sum(unlimited)))


def test_a_smaller_draw_is_part_of_a_larger_one_in_the_same_order(table_of):
    table = table_of([f"problem {number}" for number in range(50)])
    large = [problem.problem for problem in draw(table, 30, seed=0)]
    small = [problem.problem for problem in draw(table, 10, seed=0)]
    assert len(small) == 10
    assert small == [text for text in large if text in small]
    assert large != [problem.problem for problem in table][:30]


def test_another_seed_draws_others(table_of):
    table = table_of([f"problem {number}" for number in range(50)])
    drawn = [{problem.id for problem in draw(table, 10, seed=seed)} for seed in (0, 1)]
    assert drawn[0] != drawn[1]


def test_drawing_all_keeps_the_order(table_of):
    table = table_of(["b", "a"])
    assert [problem.problem for problem in draw(table, 5, seed=0)] == ["b", "a"]
