import pytest

from lib.report.comparisons import (
    Comparison,
    alarms,
    compare_checkpoints,
    compare_pair,
    comparison_metrics,
    describe,
    read_comparisons,
    steps_of_training,
)
from lib.stats import Difference, Estimate, Interval
from tests.lib.report.runs import CHECKPOINTS, STARTS, load, read, write_run

WORSE = {"base": 0.0, "sft": 0.9, "grpo": 0.2}
WORSE_THAN_UNTRAINED = {"base": 0.9, "sft": 0.3, "grpo": 0.3}


def test_differences_are_those_of_the_completions(run):
    comparisons = compare_checkpoints(run)
    greedy = next(c for c in comparisons if (c.after, c.mode) == ("grpo", "greedy"))
    rows = [
        [
            r.answer_ok
            for r in run.completions[name]
            if (r.benchmark, r.mode) == ("held_out", "greedy")
        ]
        for name in ("sft", "grpo")
    ]
    before, after = (sum(grades) / len(grades) for grades in rows)
    assert greedy.change.difference.value == pytest.approx(after - before)
    assert (greedy.change.before, greedy.change.after) == pytest.approx((before, after))
    assert greedy.change.difference.n == len(rows[0])


def test_every_checkpoint_is_compared_with_the_one_before_it(run):
    comparisons = compare_checkpoints(run)
    assert [(c.before, c.after, c.benchmark, c.mode) for c in comparisons] == [
        (before, after, benchmark, mode)
        for before, after in (("base", "sft"), ("sft", "grpo"))
        for benchmark in ("held_out", "harder")
        for mode in ("greedy", "sampled")
    ]


def test_a_phase_beside_another_is_compared_with_what_it_started_from(tmp_path):
    skill = {"base": 0.0, "sft": 0.5, "grpo": 0.9, "dpo": 0.6}
    sources, starts = write_run(tmp_path, skill=skill), STARTS | {"dpo": "sft"}
    comparisons = compare_checkpoints(read(sources, checkpoints=tuple(skill), starts=starts))
    pairs = list(dict.fromkeys((c.before, c.after) for c in comparisons))
    assert pairs == [("base", "sft"), ("sft", "grpo"), ("sft", "dpo")]
    assert read_comparisons(comparison_metrics(comparisons), tuple(skill), starts) == comparisons
    assert list(alarms(comparisons, untrained="base")) == []  # against grpo there would be one


def test_without_its_start_a_phase_is_compared_with_the_checkpoint_before_it():
    assert list(steps_of_training(("base", "grpo"), STARTS)) == [("base", "grpo")]


def test_metrics_hold_the_comparisons_whole(run):
    comparisons = compare_checkpoints(run)
    assert read_comparisons(comparison_metrics(comparisons), CHECKPOINTS, STARTS) == comparisons


def test_a_phase_that_made_the_model_worse_is_an_alarm(tmp_path):
    comparisons = compare_checkpoints(load(tmp_path, skill=WORSE))
    loud = list(alarms(comparisons, untrained="base"))
    assert any("GRPO IS WORSE THAN SFT BEYOND NOISE: greedy" in alarm for alarm in loud)


def test_what_the_untrained_model_lost_is_no_alarm(tmp_path):
    comparisons = compare_checkpoints(load(tmp_path, skill=WORSE_THAN_UNTRAINED))
    assert list(alarms(comparisons, untrained="base")) == []


def test_noise_is_no_alarm(run):
    same = {"sft": run.completions["sft"], "grpo": run.completions["sft"]}
    comparisons = compare_pair(same, before="sft", after="grpo")
    assert {c.change.p_value for c in comparisons} == {1.0}
    assert describe(comparisons[0]) == "no grade changed on held_out (greedy)."
    assert list(alarms(comparisons, untrained="base")) == []


def slightly_worse(benchmark):
    """One comparison whose p-value is 0.03."""
    change = Difference(
        before=0.5,
        after=0.4,
        difference=Estimate(-0.1, 0.045, 500),
        interval=Interval(-0.19, -0.01),
        p_value=0.03,
    )
    return Comparison(before="sft", after="grpo", benchmark=benchmark, mode="greedy", change=change)


def test_more_comparisons_ask_for_more_evidence():
    assert len(list(alarms([slightly_worse("a")], untrained="base"))) == 1
    assert list(alarms([slightly_worse("a"), slightly_worse("b")], untrained="base")) == []


def test_checkpoints_with_different_problems_are_refused(run):
    fewer = {"sft": run.completions["sft"], "grpo": run.completions["grpo"][1:]}
    with pytest.raises(ValueError, match="not the same problems: 1 only before"):
        compare_pair(fewer, before="sft", after="grpo")
