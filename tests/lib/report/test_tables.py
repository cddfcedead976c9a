import pytest

from lib.report.tables import breakdown, headline_table
from tests.lib.report.runs import CHECKPOINTS


def rows_by_title(table):
    return {row[0]: row[1:] for row in table.rows}


def test_headline_shows_every_rate_with_its_error(run):
    table = headline_table(run.metrics, "held_out")
    greedy = run.metrics["grpo"]["held_out"]["greedy"]
    value, se = greedy["answer_accuracy"], greedy["answer_accuracy_se"]
    assert table.header == ("", *CHECKPOINTS)
    rows = rows_by_title(table)
    assert rows["answer accuracy, greedy"][2] == f"{100 * value:.1f} ± {100 * se:.1f}"
    assert {"pass@1, sampled", "pass@4, sampled", "maj@4, sampled"} <= rows.keys()


def test_columns_of_unlike_numbers_of_samples_keep_their_pass_at_k():
    own = {
        k: {"n": 5, "num_samples": k, "pass_at_1": 0.5, f"pass_at_{k}": k / 4} for k in (1, 2, 3)
    }
    metrics = {f"k={k}": {"a": {"sampled": numbers}} for k, numbers in own.items()}
    table = headline_table(metrics, "a")
    assert table.title == "a, n = 5 problems, 1 or 2 or 3 samples each"
    rows = rows_by_title(table)
    assert rows["pass@2, sampled"] == ("–", "50.0", "–")
    assert rows["pass@3, sampled"] == ("–", "–", "75.0")
    assert list(rows) == ["pass@1, sampled", "pass@2, sampled", "pass@3, sampled"]


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
