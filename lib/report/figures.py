"""The report's figures: rates, breakdowns, pass@k, rewards, training curves."""

import copy
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lib.artifacts.completions import SAMPLED, GradedCompletion
from lib.report.charts import (
    LAYERS,
    SERIES_COLORS,
    SHARE_AXIS,
    STEP,
    Figure,
    Panel,
    Spec,
    chart_label,
    colored_by,
    colors_of,
    learning_curve,
    panel_of,
    quantity,
    whiskers,
)
from lib.report.comparisons import problem_grades
from lib.report.inputs import LoggedCurve, Run
from lib.report.tables import BREAKDOWNS, Columns, groups_of, main_mode, measures
from lib.report.text import percent, source
from lib.stats import Estimate, mean_estimate, pass_at_k, rate_estimate, share_interval

# Columns have TRL's names, so that `grpo.trainer: trl` fills the same panels.
SERIES: dict[str, dict[str, str]] = json.loads(source("series.json"))
"""Stage, or "validation" → logged column → panel title, in the order of the panels."""

CURVES = {stage: titles for stage, titles in SERIES.items() if stage != "validation"}
"""The training stages of `SERIES`."""

LOSS_CAPTION = (
    "The loss is not informative: on policy, centred advantages cancel in its value but not in its "
    "gradient. Look at reward, right answers, entropy and gradient norm."
)

HEADLINE_RATES = 3
"""Rates in the first figure: greedy, pass@1, pass@k."""

MAX_BINS = 24
"""Most bars of a reward histogram."""

NORMAL_95 = 1.96
"""Half-width of a normal 95 % interval in standard errors."""


def report_figures(run: Run) -> list[Figure]:
    """Build the figures of the report in reading order, without those that have no panel."""
    sets = run.benchmarks
    figures = [
        headline_figure(run),
        Figure(
            "breakdown",
            "By level, tag and subject",
            "Answer accuracy with 95 % intervals: greedy if measured, else sampled.",
            tuple(panel for name in sets for panel in breakdown_panels(run, name)),
        ),
        Figure(
            "pass_at_k",
            "pass@k",
            "Chance that at least one of k samples is right, with 95 % bands.",
            tuple(panel for name in sets for panel in pass_at_k_panels(run, name)),
        ),
        reward_figure(run),
        validation_figure(run),
        *(curve_figure(stage, run.curves[stage]) for stage in CURVES if stage in run.curves),
    ]
    return [each for each in figures if each.panels]


def headline_figure(run: Run) -> Figure:
    """Draw the headline rates of the first benchmark, and the exported model's validation curve."""
    benchmark = run.benchmarks[0]
    rows = measures(run.metrics, benchmark)
    rates = [(rate.title, rate.name, columns) for rate, columns in rows if rate.form is percent]
    validation = validation_figure(run)
    exported = [panel for panel in validation.panels if panel.title.startswith(run.exported)]
    curve = exported or validation.panels[-1:]
    caption = "Dots with 95 % intervals." + (f" {validation.caption}" if curve else "")
    panels = tuple(
        Panel(panel.title, panel.spec | {"height": 280})
        for panel in (_rate_panel(run, benchmark, rates[:HEADLINE_RATES]), *curve)
    )
    return Figure("headline", "Before and after", caption, panels)


def breakdown_panels(run: Run, benchmark: str) -> Iterator[Panel]:
    """Draw answer accuracy by level, by tag and by subject, a panel each.

    A panel is left out if it would only repeat the overall rate.
    """
    _, columns = main_mode(run.metrics, benchmark)
    for group, what in BREAKDOWNS.items():
        rates = [
            (chart_label(label), "answer_accuracy", numbers)
            for label, numbers in groups_of(columns, group)
        ]
        # A single level or subject has all problems, and repeats the overall rate. A single tag
        # may be on only some of the problems.
        fewest = 1 if group == "by_tag" else 2
        if len(rates) >= fewest:
            yield _rate_panel(run, f"{benchmark}, by {what}", rates)


def _rate_panel(run: Run, title: str, rates: Sequence[tuple[str, str, Columns]]) -> Panel:
    """Draw a line for each rate, with a dot and its 95 % interval per checkpoint.

    Args:
        title: the panel's title.
        rates: (label, metric name, numbers by checkpoint) of each line, from top to bottom.
    """
    rows = [
        {"label": label, "checkpoint": checkpoint, **_interval(rate_estimate(numbers, name))}
        for label, name, columns in rates
        for checkpoint, numbers in columns.items()
        # A checkpoint may lack a rate: a prompt format without reasoning has no share of it.
        if name in numbers
    ]
    labels = [label for label, *_ in rates]
    return whiskers(rows, title=title, checkpoints=run.checkpoints, labels=labels)


def pass_at_k_panels(run: Run, benchmark: str) -> Iterator[Panel]:
    """Draw pass@k over k from the sampled completions: a line and its 95 % band per checkpoint."""
    rows: list[dict[str, Any]] = [
        # Each k reuses the same samples, so neighbouring points are correlated.
        {"checkpoint": name, "k": k, **_interval(estimate)}
        for name in run.checkpoints
        for k, estimate in pass_at_k_curve(run.completions[name], benchmark)
    ]
    ticks = sorted({row["k"] for row in rows})
    if len(ticks) < 2:
        return
    encoding = {
        "x": quantity(
            "k",
            title="samples k",
            scale={"type": "log", "base": 2, "nice": False},
            # Ticks at powers of 2 only: on the log axis, labels of other k overlap.
            axis={"values": [k for k in ticks if k & (k - 1) == 0], "format": "d"},
        ),
        "y": SHARE_AXIS,
        "color": colored_by("checkpoint", run.checkpoints),
    }
    yield panel_of(benchmark, rows, 200, encoding, layer=[LAYERS["band"], LAYERS["points"]])


def pass_at_k_curve(
    rows: Sequence[GradedCompletion], benchmark: str
) -> Iterator[tuple[int, Estimate]]:
    """Yield (k, pass@k) for every k up to the smallest number of samples of any problem.

    Nothing if the benchmark was not sampled.
    """
    grades = problem_grades(rows).get((benchmark, SAMPLED), {}).values()
    # A larger k would leave out problems with fewer samples, so that points could not be compared.
    for k in range(1, min(map(len, grades), default=0) + 1):
        yield (
            k,
            mean_estimate(
                # Unbiased estimator over all subsets of k samples (arXiv:2107.03374, equation 1).
                [pass_at_k(num_completions=len(row), num_correct=sum(row), k=k) for row in grades]
            ),
        )


def reward_figure(run: Run) -> Figure:
    """Draw a histogram of the total reward on the first benchmark, a panel per checkpoint.

    All panels have the same bins.
    """
    benchmark = run.benchmarks[0]
    # Checkpoint → total reward → number of its completions. A model of another format than the
    # rewards read has none, for which a total of 0 would mislead.
    counts = {
        name: Counter(
            row.reward
            for row in run.completions[name]
            if row.benchmark == benchmark and row.rewards
        )
        for name in run.checkpoints
    }
    rewards = {reward for counter in counts.values() for reward in counter}
    panels = []
    for name, color in colors_of(run.checkpoints).items():
        total = counts[name].total()
        # A row per distinct reward; Vega-Lite puts them into bins and adds up their shares.
        rows = [{"reward": reward, "share": n / total} for reward, n in counts[name].items()]
        if rows:
            bins = {"maxbins": MAX_BINS, "extent": [min(rewards), max(rewards)]}
            encoding = {
                "x": quantity("reward", bin=bins, title="total reward"),
                "y": quantity("share", aggregate="sum", **SHARE_AXIS),
            }
            mark = {"type": "bar", "color": color, "tooltip": True}
            panels.append(panel_of(name, rows, 140, encoding, mark=mark))
    caption = f"Total reward of all completions of {benchmark}; share of completions."
    return Figure("rewards", "Rewards before and after", caption, tuple(panels), columns=3)


def curve_figure(stage: str, curve: LoggedCurve) -> Figure:
    """Draw one stage's training curves: a panel per measure, one panel for all reward functions.

    Args:
        stage: "sft", "grpo" or "dpo".
        curve: logged column → (step, value) pairs.
    """
    titles = CURVES[stage]
    # Measures that are zero at every step, like KL without a reference policy, get no panel: the
    # caption names them.
    flat = [name for name in titles if name in curve and not any(value for _, value in curve[name])]
    lines = {
        "total reward": {"reward": "reward"},
        "reward by component": reward_components(curve),
        **{title: {name: name} for name, title in titles.items() if name not in flat},
    }
    panels = []
    for title, names in lines.items():
        rows = [row for name, line in names.items() for row in series_rows(curve, name, line)]
        if rows:
            panels.append(_curve_panel(title, rows, list(names.values())))
    caption = "From 25 logged steps on, faint: each step; strong: running mean."
    if stage == "grpo":
        caption += f" {LOSS_CAPTION}"
    if flat:
        caption += f" Zero throughout: {', '.join(titles[name] for name in flat)}."
    return Figure(f"{stage}_curves", f"Training: {stage}", caption, tuple(panels))


def _curve_panel(title: str, rows: Sequence[Mapping[str, Any]], series: Sequence[str]) -> Panel:
    """Draw values over steps: a line per series; with 25 logged steps or more, also a running mean.

    Args:
        title: the panel's title.
        rows: {"step", "series", "value"} of all series.
        series: names of the lines, in the order of their colours.
    """
    # Steps on either side of a point in its running mean, which is thus over 2 · reach + 1 steps,
    # about 8 % of the curve. With fewer than 25 steps, reach is 0 and there is no mean.
    reach = len(rows) // len(series) // 25
    encoding = {
        "x": STEP,
        # Not from 0, which would hide small changes of large values.
        "y": quantity("value", title=None, scale={"zero": False}),
        "color": colored_by("series", series, SERIES_COLORS),
    }
    # With one or two steps the points are drawn too: a line through one is invisible.
    layers: list[Spec] = [{"mark": {"type": "line", "point": len(rows) < 3 * len(series)}}]
    if reach:
        # Two layers: the values in a faint line, their mean in a strong one. A copy, since all
        # panels share LAYERS, and the window of the mean differs.
        layers = [LAYERS["faint"], copy.deepcopy(LAYERS["running_mean"])]
        layers[1]["transform"][0]["frame"] = [-reach, reach]
    return panel_of(title, rows, 180, encoding, layer=layers)


def reward_components(curve: LoggedCurve) -> dict[str, str]:
    """Return column → reward function for the columns with a function's mean; {} if none.

    "rewards/match_format_exactly/mean" -> "match_format_exactly"
    """
    means = (name for name in curve if name.startswith("rewards/") and name.endswith("/mean"))
    return {name: name.split("/")[1] for name in means}


def series_rows(
    curve: LoggedCurve, column: str, series: str, *, error: str = "", scale: float = 1.0
) -> list[dict[str, Any]]:
    """Return a row per logged step of a column, {"step", "series", "value"}; [] without the column.

    A row whose error is known also has a 95 % band, "low" and "high".

    Args:
        curve: logged column → (step, value) pairs.
        column: the column of values.
        series: name of the series in the rows.
        error: the column of errors; '' for none.
        scale: factor from the column of errors to standard errors; NaN if unknown.
    """
    errors = dict(curve.get(error, ()))
    rows = []
    for step, value in curve.get(column, ()):
        reach = NORMAL_95 * scale * errors.get(step, math.nan)
        band = {} if math.isnan(reach) else {"low": value - reach, "high": value + reach}
        rows.append({"step": step, "series": series, "value": value, **band})
    return rows


def validation_figure(run: Run) -> Figure:
    """Draw validation accuracy over training steps: a panel per stage, a line per validation set.

    A ring marks the step that `select: best` chose.
    """
    panels, drawn = [], []
    for stage, curve in run.validations.items():
        sets, rows = [], []
        # Problems of each set, at most. Without provenance the bands have no width.
        settings = run.provenance.get(stage, {}).get("settings", {}).get("validation", {})
        n = settings.get("num_problems")
        for column, values in curve.items():
            set_name, _, measure = column.rpartition("/")
            sampled = measure.startswith("pass_at_")
            if (measure == "answer_accuracy" or sampled) and values:
                series = set_name or "first set"
                if sampled:
                    series += f", pass@{measure.removeprefix('pass_at_')}"
                sets.append(series)
                errors = dict(curve.get(f"{column}_se", ()))
                for step, value in values:
                    bounds = {"value": value, "low": value, "high": value}
                    if n and not sampled:
                        bounds = _interval(Estimate(value, errors.get(step, math.nan), n))
                    rows.append({"step": step, "series": series, **bounds})
        if rows:
            title = f"{stage}, answer accuracy"
            best = run.selections.get(stage)
            panels.append(learning_curve(rows, title=title, series=sets, best=best))
            drawn.append(sets)
    caption = "Greedy answers to validation problems with 95 % bands; dashed: at step 0."
    if any("pass@" in series for curve in drawn for series in curve):
        caption += " pass@k: sampled answers."
    if run.selections:
        caption += " Ring: the step handed on, best on the held-back set."
    return Figure("validation", "Validation while training", caption, tuple(panels))


def _interval(estimate: Estimate) -> dict[str, float]:
    """Return {"value", "low", "high", "n"} of an estimate: its 95 % interval, rounded."""
    interval = share_interval(estimate)
    bounds = {"value": estimate.value, "low": interval.low, "high": interval.high}
    # The page embeds these numbers; more digits add bytes and change no pixel.
    return {name: round(bound, 5) for name, bound in bounds.items()} | {"n": estimate.n}
