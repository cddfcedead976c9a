"""`./reckon evaluate` compares models of any origin."""

import dataclasses

from lib.artifacts.completions import UNGRADED
from lib.report.comparisons import compare_checkpoints
from lib.report.report import build_report
from lib.report.write import write_models
from tests.lib.report.runs import load


def side_by_side(run, **changes):
    """Treat a run's checkpoints as unrelated models."""
    starts = dict.fromkeys(run.checkpoints[1:], run.checkpoints[0])
    return dataclasses.replace(run, trained=False, starts=starts, **changes)


def test_a_model_is_compared_with_the_first_without_alarm(tmp_path):
    run = side_by_side(load(tmp_path / "run", skill={"base": 0.9, "sft": 0.0, "grpo": 0.2}))
    report = build_report(run)
    assert report.alarms == []
    pairs = [line.split(":")[0] for line in report.findings]
    assert pairs == ["base → sft"] * 2 + ["base → grpo"] * 2
    assert "preset" not in dict(report.facts)
    tables = {table.title.split(",")[0] for table in write_models(run, tmp_path / "out")}
    assert tables == {"held_out", "held_out by subject", "harder", "harder by subject"}
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"report.html", "table.md"}


def test_models_are_compared_on_the_problems_both_answered(run):
    missing = run.completions["base"][0].problem_id
    shorter = [row for row in run.completions["base"] if row.problem_id != missing]
    models = side_by_side(run, completions={**run.completions, "base": shorter})
    compared = [each for each in compare_checkpoints(models) if each.benchmark == "held_out"]
    assert [each.change.difference.n for each in compared] == [23] * 4


def test_ungraded_completions_are_neither_compared_nor_plotted(run):
    ungraded = {
        name: [
            dataclasses.replace(row, decided_by=UNGRADED) if row.benchmark == "harder" else row
            for row in rows
        ]
        for name, rows in run.completions.items()
    }
    form = {"harder": {"greedy": {"n": 8, "format_accuracy": 1.0}}}
    metrics = {name: {**rates, **form} for name, rates in run.metrics.items()}
    report = build_report(side_by_side(run, completions=ungraded, metrics=metrics))
    assert {each.benchmark for each in report.comparisons} == {"held_out"}
    only = side_by_side(run, completions=ungraded, metrics=metrics, benchmarks=("harder",))
    assert (build_report(only).example, build_report(only).transcripts) == (None, [])
    plotted = [panel.title for each in report.figures for panel in each.panels]
    tabled = [table.title for table in (*report.classes, *report.breakdowns)]
    assert [title for title in (*plotted, *tabled) if "harder" in title] == []
