import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.problems.mixture import mixture_counts
from lib.problems.selection import draw, split
from tests.lib.problems.conftest import texts

SOURCES = st.lists(
    st.tuples(st.integers(1, 10_000), st.floats(0.01, 10) | st.just("all")), min_size=1, max_size=5
)


@pytest.mark.parametrize(
    ("available", "weights", "limit", "counts"),
    [
        ([100, 50], ["all", "all"], "all", [100, 50]),
        ([100, 50], [1.0, 1.0], "all", [50, 50]),
        ([100, 50], [0.3, 0.1], "all", [100, 33]),
        ([100, 50, 7], [1.0, 1.0, "all"], "all", [50, 50, 7]),
        ([100, 50], ["all", "all"], 30, [20, 10]),
        ([100, 50], [1.0, 1.0], 31, [16, 15]),
        ([100], [2.5], 1000, [100]),
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


@pytest.fixture
def table_of_numbers(table_of):
    """Write so many problems with numbers."""
    return lambda count: table_of([f"problem {number}" for number in range(count)])


def test_a_smaller_draw_is_part_of_a_larger_one(table_of_numbers):
    table = table_of_numbers(50)
    large, small, other = (
        texts(draw(table, count, seed=seed)) for count, seed in ((30, 0), (10, 0), (30, 1))
    )
    assert len(small) == 10
    assert small == [text for text in large if text in small]
    assert {*large} != {*other} and large != texts(table)[:30]
    assert texts(draw(table, 60, seed=0)) == texts(table)


def test_known_problems_stay_where_they_are(table_of_numbers):
    train, held_back = split(table_of_numbers(8), share=0.5)
    assert [text[-1] for text in texts(held_back)] == ["0", "2", "4", "5", "7"]
    assert [text[-1] for text in texts(train)] == ["1", "3", "6"]


def test_the_share_held_back_is_the_requested_one(table_of_numbers):
    table = table_of_numbers(2000)
    before = set()
    for share in (0.0, 0.1, 0.5, 1.0):
        held_back = set(texts(split(table, share=share)[1]))
        assert before <= held_back
        deviation = (share * (1 - share) / 2000) ** 0.5
        assert abs(len(held_back) / 2000 - share) <= 4 * deviation
        before = held_back
