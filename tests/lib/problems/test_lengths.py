import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.artifacts.problems import Problem
from lib.errors import UserError
from lib.problems.lengths import (
    Lengths,
    TokenLimits,
    drop_too_long,
    measure,
    percentile,
    token_limits,
)
from lib.problems.store import Drops
from tests.lib.problems.conftest import rendering, section, texts


def _characters(batch):
    return [len(text) for text in batch]


def _limits(prompts, *, percent=100.0, max_tokens=0):
    lengths = section(lengths={"prompt_percentile": percent, "max_tokens": max_tokens}).lengths
    return token_limits(prompts, lengths, max_seq_length=100)


@pytest.mark.parametrize(
    ("percent", "value"), [(90, 9), (91, 10), (100, 10), (50, 5), (10, 1), (0, 1)]
)
def test_percentile_is_the_nearest_rank(percent, value):
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percent) == value


@given(st.lists(st.integers(0, 100), min_size=1), st.floats(0, 100))
def test_at_least_that_percentage_is_not_above_the_percentile(values, percent):
    limit = percentile(values, percent)
    assert 100 * sum(value <= limit for value in values) / len(values) >= percent - 1e-9
    assert limit in values


def test_the_longest_prompt_is_the_percentile_of_all_prompts():
    assert _limits([10, 20, 30, 90], percent=75) == TokenLimits(prompt=30, total=100)


def test_a_hard_cut_lowers_the_total_alone():
    assert _limits([10], max_tokens=40) == TokenLimits(prompt=10, total=40)
    assert _limits([10], max_tokens=4096).total == 100


def test_prompts_that_leave_no_room_are_refused():
    with pytest.raises(UserError, match=r"model\.max_seq_length=100: .*100 tokens"):
        _limits([10, 20, 100, 200], percent=75)


def test_lengths_are_counted_as_the_format_renders(table_of):
    table = table_of([Problem.create(problem="2 + 2?", reference="4", solution="Add.")])
    counted = measure(
        table, rendering=rendering("working_out"), count_tokens=_characters, completions=True
    )
    assert counted.prompts == [len("2 + 2?\n<start_working_out>")]
    assert counted.completions == [len("Add.<end_working_out><SOLUTION>4</SOLUTION><eos>")]
    bare = measure(table, rendering=rendering(), count_tokens=_characters, completions=False)
    assert bare.completions == [0]


def test_a_long_row_is_counted_under_the_limit_it_exceeds(table_of):
    drops = Drops(num_read=5)
    table = table_of(["fits", "long prompt", "long completion", "long both", "at the limit"])
    lengths = Lengths([10, 31, 1, 30, 30], [70, 1, 80, 60, 50])
    kept = drop_too_long(table, lengths, TokenLimits(prompt=30, total=80), drops=drops)
    assert texts(kept) == ["fits", "at the limit"]
    assert drops.counts == {"prompt_too_long": 1, "too_long": 2}
    assert drops.metrics()["dropped"]["too_long"] == {"count": 2, "share": 0.4}
