"""Models that anybody trained, as `make evaluate` compares them."""

import dataclasses

import pytest

from lib.artifacts.completions import UNGRADED
from lib.report.comparisons import compare_checkpoints
from lib.report.figures import report_figures
from lib.report.report import build_report
from tests.lib.report.runs import load


def side_by_side(run):
    """The checkpoints of a run as models that have nothing to do with each other."""
    return dataclasses.replace(
        run, trained=False, starts=dict.fromkeys(run.checkpoints[1:], run.checkpoints[0])
    )


def test_each_model_is_compared_with_the_first_and_a_worse_one_is_no_alarm(tmp_path):
    run = load(tmp_path, skill={"base": 0.9, "sft": 0.0, "grpo": 0.2})
    report = build_report(side_by_side(run))
    assert report.alarms == []
    assert [line.split(":")[0] for line in report.findings] == [
        "base → sft", "base → sft", "base → grpo", "base → grpo",
    ]  # fmt: skip
    assert {name for name, _ in report.facts} == {"seed", "run"}
    settings = next(table for table in report.provenance if table.title == "settings")
    assert settings.header == ("key", "value") and not settings.strong


def test_models_are_compared_on_the_problems_that_both_answered(run):
    missing = run.completions["base"][0].problem_id
    shorter = [row for row in run.completions["base"] if row.problem_id != missing]
    models = side_by_side(
        dataclasses.replace(run, completions={**run.completions, "base": shorter})
    )
    compared = compare_checkpoints(models)
    held_out = [each.change.difference.n for each in compared if each.benchmark == "held_out"]
    assert held_out == [23, 23, 23, 23]
    with pytest.raises(ValueError, match="not the same problems"):
        compare_checkpoints(dataclasses.replace(models, trained=True))


def test_what_has_no_grade_is_neither_compared_nor_drawn(run):
    ungraded = {
        name: [
            dataclasses.replace(row, decided_by=UNGRADED) if row.benchmark == "harder" else row
            for row in rows
        ]
        for name, rows in run.completions.items()
    }
    form = {"greedy": {"n": 8, "format_accuracy": 1.0}}
    models = side_by_side(
        dataclasses.replace(
            run,
            completions=ungraded,
            metrics={name: {**of, "harder": form} for name, of in run.metrics.items()},
        )
    )
    report = build_report(models)
    assert {each.benchmark for each in report.comparisons} == {"held_out"}
    assert not any("harder" in table.title for table in report.classes)
    panels = {f.name: [p.title for p in f.panels] for f in report_figures(models)}
    assert panels["pass_at_k"] == panels["classes"] == ["held_out"]
    assert not any("harder" in title for title in panels["breakdown"])
