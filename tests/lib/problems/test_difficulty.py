import pytest

from lib.artifacts.problems import content_id
from lib.core.errors import UserError
from lib.problems.selection import (
    PassRate,
    easy_to_hard,
    read_pass_rates,
    write_pass_rates,
)
from tests.lib.problems.conftest import texts

TEXTS = ["never", "seldom", "unrated", "often", "always"]
RATES = {
    content_id(text): PassRate(correct, 8)
    for text, correct in [("never", 0), ("seldom", 1), ("often", 7), ("always", 8)]
}


def test_what_was_written_is_read(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    write_pass_rates(one, RATES)
    write_pass_rates(other, dict(reversed(RATES.items())))
    assert read_pass_rates(one) == RATES
    assert one.read_bytes() == other.read_bytes()


def test_easy_problems_come_first_and_unrated_ones_last(table_of):
    ordered = texts(easy_to_hard(table_of([*TEXTS, "other"]), RATES))
    assert ordered == ["always", "often", "seldom", "never", "unrated", "other"]


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        '{"id": "a"}',
        "nonsense",
        '{"id": "a", "num_correct": 3, "num_completions": 2}',
        '{"id": "a", "num_correct": 0, "num_completions": 0}',
    ],
)
def test_a_line_that_is_no_pass_rate_is_named(tmp_path, line):
    path = tmp_path / "rates.jsonl"
    write_pass_rates(path, RATES)
    path.write_text(path.read_text() + line)
    with pytest.raises(UserError, match=r"rates\.jsonl:5: not a pass rate"):
        read_pass_rates(path)


def test_a_missing_file_says_what_writes_it(tmp_path):
    with pytest.raises(UserError, match=r"`\./reckon difficulty` writes it"):
        read_pass_rates(tmp_path / "rates.jsonl")
