import dataclasses

import pytest

from lib.core.errors import UserError
from lib.report.comparisons import Comparison, alarms, compare_checkpoints, compare_pair
from lib.report.report import build_report
from lib.stats import Difference, Estimate, Interval
from tests.lib.report.runs import STARTS, load, read, write_run


def test_differences_are_those_of_the_completions(run):
    places = [(c.after, c.benchmark, c.mode, c.change.difference) for c in compare_checkpoints(run)]
    # Two phases, two benchmarks, two modes.
    assert len(places) == 2 * 2 * 2
    (change,) = (last for *place, last in places if place == ["grpo", "held_out", "greedy"])
    before, after = (
        [row.answer_ok for row in run.completions[name] if row.mode == "greedy"][:24]
        for name in ("sft", "grpo")
    )
    assert (change.value, change.n) == (pytest.approx((sum(after) - sum(before)) / 24), 24)


def test_a_phase_is_compared_with_what_it_started_from(tmp_path):
    skill = {"base": 0.0, "sft": 0.5, "grpo": 0.9, "dpo": 0.6}
    folder, starts = write_run(tmp_path, skill=skill), STARTS | {"dpo": "sft"}
    report = build_report(read(folder, checkpoints=tuple(skill), starts=starts))
    pairs = list(dict.fromkeys((c.before, c.after) for c in report.comparisons))
    assert pairs == [("base", "sft"), ("sft", "grpo"), ("sft", "dpo")]
    assert report.alarms == []  # against grpo there would be one


def test_without_its_start_a_phase_follows_the_one_before(run):
    assert dataclasses.replace(run, checkpoints=("base", "grpo")).origins == {"grpo": "base"}


@pytest.mark.parametrize(
    ("skill", "names"),
    [
        ({"base": 0.0, "sft": 0.9, "grpo": 0.2}, {"GRPO"}),
        # A fall from the untrained model is no alarm: teaching a format may cost answers.
        ({"base": 0.9, "sft": 0.3, "grpo": 0.3}, set()),
        # The first one here is trained.
        ({"sft": 0.9, "grpo": 0.2}, {"GRPO"}),
        # The params list the untrained one second.
        ({"sft": 0.9, "base": 0.0, "grpo": 0.9}, set()),
    ],
)
def test_a_phase_that_made_the_model_worse_is_an_alarm(tmp_path, skill, names):
    folder = write_run(tmp_path, skill=skill)
    loud = build_report(read(folder, checkpoints=tuple(skill))).alarms
    assert {alarm.split()[0] for alarm in loud} == names


def test_rows_that_make_no_pairs_are_refused(run):
    """A problem has one attempt fewer, or another reference."""
    own = run.completions["sft"]
    first = next(row for row in own if row.mode == "sampled")
    name = first.problem_id
    fewer = {**run.completions, "sft": [row for row in own if row is not first]}
    other = [
        dataclasses.replace(row, reference="another") if row.problem_id == name else row
        for row in run.completions["grpo"]
    ]
    for completions, fault in (
        (fewer, f"sft: {first.benchmark}, sampled: .*{name}"),
        ({**run.completions, "grpo": other}, f"{name} .* in sft and `another` in grpo"),
    ):
        with pytest.raises(UserError, match=fault):
            list(compare_pair(completions, before="sft", after="grpo"))
    assert list(compare_pair(run.completions, before="sft", after="grpo"))


def test_a_fall_on_another_set_is_a_finding(tmp_path):
    run = load(tmp_path, skill={"base": 0.0, "sft": 0.9, "grpo": 0.9})
    worse = [
        dataclasses.replace(row, answer_ok=False) if row.benchmark == "harder" else row
        for row in run.completions["sft"]
    ]
    report = build_report(dataclasses.replace(run, completions={**run.completions, "grpo": worse}))
    assert not any("WORSE" in alarm for alarm in report.alarms)
    assert any("grpo" in line and " on harder −" in line for line in report.findings)


def test_more_comparisons_ask_for_more_evidence():
    change = Difference(Estimate(-0.1, 0.05, 500), Interval(-0.2, 0.0), 0.03)
    one, other = (
        Comparison(before="sft", after="grpo", benchmark=name, mode="greedy", change=change)
        for name in ("a", "b")
    )
    assert len(list(alarms([one]))) == 1
    assert list(alarms([one, other])) == []
