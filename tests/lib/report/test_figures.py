import dataclasses
import re
import xml.etree.ElementTree as ElementTree

import pytest

from lib.report.charts import STEP, Figure, figure_svg
from lib.report.figures import (
    breakdown_panels,
    headline_figure,
    pass_at_k_curve,
    report_figures,
    validation_figure,
)
from lib.report.report import caveats
from lib.report.tables import breakdown
from lib.report.text import table_lines
from lib.stats import Estimate, share_interval


@pytest.fixture(scope="module")
def figures(run):
    return {figure.name: figure for figure in report_figures(run)}


def test_figures_have_no_background_and_load_nothing(figures):
    for svg in map(figure_svg, figures.values()):
        ElementTree.fromstring(svg)
        assert not re.search(r'<rect[^>]*fill="white"', svg)
        assert not re.findall(r'(?:href|src|url)\s*[=(]\s*["\']?(http[^"\')]*)', svg)


def test_pass_at_k_curve_ends_at_the_measured_numbers(run):
    curve = dict(pass_at_k_curve(run.completions["grpo"], "held_out"))
    measured = run.metrics["grpo"]["held_out"]["sampled"]
    assert sorted(curve) == [1, 2, 3, 4]
    assert curve[1].value == pytest.approx(measured["pass_at_1"])
    assert curve[4].value == pytest.approx(measured["pass_at_4"])
    assert curve[4].se == pytest.approx(measured["pass_at_4_se"])


def test_a_label_of_the_data_ends_no_chart(run):
    """Vega looks labels up in JavaScript objects; its SVG writer aborts on a control character."""
    labels = ("constructor", "__proto__", "\x1b[31mred", "a" * 5_000, "plain")
    grades = run.metrics["grpo"]["held_out"]
    mode = dict(grades["greedy"], by_subject=dict.fromkeys(labels, grades["greedy"]))
    metrics = {"grpo": {"held_out": {**grades, "greedy": mode}}}
    hostile = dataclasses.replace(run, metrics=metrics)
    panels = tuple(breakdown_panels(hostile, "held_out"))
    svg = figure_svg(Figure("x", "x", "", panels))
    assert all(word in svg for word in ("constructor", "__proto__", "plain"))
    assert "\x1b" not in svg
    assert max(map(len, table_lines(breakdown(metrics, "held_out", "by_subject")))) < 500


def test_validation_is_shown_from_step_0_by_set(figures):
    (panel,) = figures["validation"].panels
    rows = {(row["series"], row["step"]): row for row in panel.spec["data"]["values"]}
    assert len(rows) == 4
    first = rows["first set", 0]
    interval = share_interval(Estimate(0.25, 0.05, 64))
    assert (first["low"], first["high"]) == pytest.approx((interval.low, interval.high), abs=1e-5)
    # No right answer, and no error known: neither is certainty.
    assert rows["harder", 0]["value"] == 0.0 and rows["harder", 0]["high"] > 0.05


def test_the_selected_step_is_ringed_with_a_caveat(run):
    best = {"step": 50, "last_step": 100, "num_points": 3, "num_problems": 64}
    best |= {"answer_accuracy": 0.75, "answer_accuracy_se": 0.05}
    selected = dataclasses.replace(run, stage_metrics={"grpo": {"selected": best}})
    for figure in (validation_figure(selected), headline_figure(selected)):
        ring = figure.panels[-1].spec["layer"][-1]
        assert ring["data"]["values"] == [best]
        assert {each["field"] for each in (STEP, ring["encoding"]["y"])} <= set(best)
        assert "Ring" in figure.caption
    (sentence,) = caveats((), selected)
    assert "step 50 of 100" in sentence and "75.0 %" in sentence
    assert "Ring" not in validation_figure(run).caption
