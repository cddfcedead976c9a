import pytest

from lib.report.report import conditions
from lib.report.tables import breakdown, headline, natural_order
from tests.lib.report.runs import CHECKPOINTS


def rows_by_title(table):
    return {row[0]: row[1:] for row in table.rows}


def test_headline_shows_every_rate_with_its_error(run):
    table = headline(run.metrics, "held_out")
    greedy = run.metrics["grpo"]["held_out"]["greedy"]
    value, se = greedy["answer_accuracy"], greedy["answer_accuracy_se"]
    assert table.header == ("", *CHECKPOINTS)
    rows = rows_by_title(table)
    assert rows["answer accuracy, greedy"][2] == f"{100 * value:.1f} ± {100 * se:.1f}"
    assert {"pass@1, sampled", "pass@4, sampled", "maj@4, sampled"} <= rows.keys()


def test_a_number_that_one_checkpoint_lacks_is_a_dash(run):
    table = headline({"grpo": run.metrics["grpo"], "dpo": {}}, "held_out")
    assert {cells[1] for cells in rows_by_title(table).values()} == {"–"}


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("by_level", [("1", "6"), ("2", "6"), ("3", "6"), ("4", "6")]),
        ("by_tag", [("unseen_equations", "6")]),
    ],
)
def test_breakdowns_have_their_groups_in_order_with_n(run, group, expected):
    assert [row[:2] for row in breakdown(run.metrics, "held_out", group).rows] == expected
    assert breakdown({"sft": {}}, "held_out", group).rows == ()


def test_numbers_come_before_words_and_by_size():
    assert sorted(["Level 2", "10", "2", "none"], key=natural_order) == [
        "2",
        "10",
        "Level 2",
        "none",
    ]


def test_the_report_tells_how_each_benchmark_was_answered(run):
    assert conditions(run).rows[0] == ("held_out, greedy", "24", "1", "0", "1", "64")
