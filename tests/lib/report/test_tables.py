import pytest

from lib.report.inputs import Formats
from lib.report.report import conditions
from lib.report.tables import breakdown, class_table, format_table, headline, natural_order
from lib.report.text import percent
from tests.lib.report.runs import CHECKPOINTS, load


def rows_by_title(table):
    return {row[0]: row[1:] for row in table.rows}


def test_headline_shows_every_rate_with_its_standard_error(run):
    table = headline(run.metrics, "held_out")
    greedy = run.metrics["grpo"]["held_out"]["greedy"]
    value, se = greedy["answer_accuracy"], greedy["answer_accuracy_se"]
    assert table.header == ("", *CHECKPOINTS)
    assert table.title == "held_out, n = 24 problems, 4 samples each"
    assert (
        rows_by_title(table)["answer accuracy, greedy"][2] == f"{100 * value:.1f} ± {100 * se:.1f}"
    )


def test_headline_names_the_k_that_was_sampled(run):
    titles = list(rows_by_title(headline(run.metrics, "harder")))
    assert {"pass@1, sampled", "pass@4, sampled", "maj@4, sampled"} <= set(titles)


def test_a_number_that_one_checkpoint_lacks_is_a_dash(run):
    table = headline({"grpo": run.metrics["grpo"], "dpo": {}}, "held_out")
    assert {cells[1] for cells in rows_by_title(table).values()} == {"–"}


def test_a_skipped_phase_is_labelled(tmp_path):
    run = load(tmp_path, problems=4, skipped=("sft",))
    assert headline(run.metrics, "held_out", skipped=run.skipped).header[2] == "sft (skipped)"


def test_breakdown_by_level_is_in_order_with_n(run):
    table = breakdown(run.metrics, "held_out", "by_level")
    assert table.header == ("level", "n", *CHECKPOINTS)
    assert [row[:2] for row in table.rows] == [("1", "6"), ("2", "6"), ("3", "6"), ("4", "6")]


def test_breakdown_by_tag_shows_the_unseen_equations(run):
    table = breakdown(run.metrics, "held_out", "by_tag")
    assert [row[:2] for row in table.rows] == [("unseen_equations", "6")]


def test_a_breakdown_without_groups_is_no_table(run):
    bare = {name: {"held_out": {"greedy": {"by_tag": {}}}} for name in CHECKPOINTS}
    assert breakdown(bare, "held_out", "by_tag") is None


def test_four_classes_add_up_to_all_completions(run):
    table = class_table(run.metrics, "held_out")
    for column in range(1, len(table.header)):
        assert sum(float(row[column]) for row in table.rows) == pytest.approx(100, abs=0.2)


def test_numbers_come_before_words_and_by_size():
    assert sorted(["Level 2", "10", "2", "none"], key=natural_order) == [
        "2",
        "10",
        "Level 2",
        "none",
    ]


def test_other_prompt_formats_stand_beside_the_trained_one(run):
    formats = Formats("sft", {"working_out": run.metrics["sft"], "xml": run.metrics["base"]})
    table = format_table(formats, "held_out")
    assert table.title.startswith("sft in other prompt formats, held_out")
    assert table.header == ("", "working_out", "xml")
    rows = {row[0]: row[1:] for row in table.rows}
    sft, base = (run.metrics[name]["held_out"]["greedy"] for name in ("sft", "base"))
    for title, name in (
        ("answer accuracy, greedy", "answer_accuracy"),
        ("strict answer accuracy", "strict_accuracy"),
    ):
        assert rows[title] == tuple(
            percent(of[name], of[f"{name}_se"], of["n"]) for of in (sft, base)
        )
    assert "equations written" not in rows


def test_the_report_tells_how_each_benchmark_was_answered(run):
    (table,) = conditions(run)
    assert table.rows[0] == ("held_out, greedy", "24", "1", "0", "1", "64")
