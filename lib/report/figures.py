"""Which figures the report shows, from a run's numbers."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from lib.artifacts.completions import GradedCompletion
from lib.report.charts import (
    BAND,
    CLASS_COLORS,
    POINTS,
    SERIES_COLORS,
    SHARE,
    STEP,
    Figure,
    Panel,
    category,
    colored_by,
    colors_of,
    measured,
    panel_of,
    quantity,
    whiskers,
)
from lib.report.comparisons import problem_grades
from lib.report.inputs import Curve, Run
from lib.report.tables import BREAKDOWNS, CLASSES, Columns, groups_of, main_mode, measures
from lib.report.text import percent
from lib.stats import Estimate, mean_estimate, pass_at_k, share_interval

CURVES: dict[str, dict[str, str]] = {
    "sft": {
        "loss": "loss",
        "eval_loss": "validation loss",
        "mean_token_accuracy": "share of target tokens predicted",
        "entropy": "entropy of the next token, nats",
        "grad_norm": "gradient norm",
        "learning_rate": "learning rate",
    },
    "grpo": {
        "answer_accuracy": "share of right answers",
        "frac_reward_zero_std": "share of groups without signal (equal rewards)",
        "completions/mean_length": "response tokens",
        "completions/clipped_ratio": "share truncated",
        "entropy": "entropy of the next token, nats",
        "kl": "KL to the reference policy",
        "clip_ratio/region_mean": "share of tokens clipped",
        "loss": "loss",
        "grad_norm": "gradient norm",
    },
    "dpo": {
        "loss": "loss",
        "rewards/accuracies": "share of pairs ranked right",
        "rewards/margins": "reward margin",
        "grad_norm": "gradient norm",
    },
}
"""By stage: logged column → what it measures, in the order of the panels."""

LOSS_SAYS_NOTHING = (
    "The loss says nothing: on policy, centred advantages cancel in its value and not in its "
    "gradient; look at reward, right answers, entropy and gradient norm."
)

MAX_BINS = 12

NORMAL_95 = 1.96
"""Standard errors to either side that hold 95 % of a normal distribution."""


def report_figures(run: Run) -> list[Figure]:
    """All figures that the run has numbers for."""
    by_benchmark = [
        Figure(name, title, caption, tuple(chain(*(panels(run, of) for of in run.benchmarks))))
        for name, (title, caption, panels) in BENCHMARK_FIGURES.items()
    ]
    figures = [*by_benchmark, reward_figure(run), validation_figure(run.validations)]
    figures += [curve_figure(stage, run.curves[stage]) for stage in CURVES if stage in run.curves]
    return [figure for figure in figures if figure.panels]


def rate_panels(run: Run, benchmark: str) -> Iterator[Panel]:
    """The rates of the headline table with their intervals."""
    rates = measures(run.metrics, benchmark)
    rows = [(of.title, of.name, columns) for of, columns in rates if of.form is percent]
    yield _whiskers(run, benchmark, rows)


def breakdown_panels(run: Run, benchmark: str) -> Iterator[Panel]:
    """Answer accuracy by level, tag and subject, where a breakdown shows more than the whole."""
    _, columns = main_mode(run.metrics, benchmark)
    for group, what in BREAKDOWNS.items():
        rows = [(label, "answer_accuracy", of) for label, of in groups_of(columns, group)]
        # One level or subject is the whole again; one tag is not.
        if len(rows) > (group != "by_tag"):
            yield _whiskers(run, f"{benchmark}, by {what}", rows)


def _whiskers(run: Run, title: str, rates: Sequence[tuple[str, str, Columns]]) -> Panel:
    """A row for each label with its rate, by its name in each checkpoint's numbers."""
    rows = [
        {"label": label, "checkpoint": checkpoint, **_bounds(numbers, name)}
        for label, name, columns in rates
        for checkpoint, numbers in columns.items()
        if name in numbers
    ]
    labels = [label for label, *_ in rates]
    return whiskers(rows, title=title, checkpoints=run.checkpoints, labels=labels)


def pass_at_k_panels(run: Run, benchmark: str) -> Iterator[Panel]:
    """pass@k over k from the sampled completions, one line a checkpoint with its 95 % band."""
    rows: list[dict[str, Any]] = [
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
            axis={"values": [k for k in ticks if k & (k - 1) == 0], "format": "d"},
        ),
        "color": colored_by("checkpoint", run.checkpoints),
    }
    yield panel_of(benchmark, rows, 200, encoding, layer=[BAND, POINTS])


def pass_at_k_curve(
    rows: Sequence[GradedCompletion], benchmark: str
) -> Iterator[tuple[int, Estimate]]:
    """pass@k for every k up to the number of samples that all problems have."""
    grades = problem_grades(rows).get((benchmark, "sampled"), {}).values()
    for k in range(1, min(map(len, grades), default=0) + 1):
        yield (
            k,
            mean_estimate(
                [pass_at_k(num_completions=len(of), num_correct=sum(of), k=k) for of in grades]
            ),
        )


def class_panels(run: Run, benchmark: str) -> Iterator[Panel]:
    """Shares of the four classes, which add up to 1, one bar a checkpoint."""
    labels = {name: f"{name} {meaning}" for name, meaning in CLASSES.items()}
    _, columns = main_mode(run.metrics, benchmark)
    rows = [
        {"checkpoint": name, "label": label, "share": numbers[f"class_{of}"], "rank": rank}
        for name, numbers in columns.items()
        for rank, (of, label) in enumerate(labels.items())
        if f"class_{of}" in numbers
    ]
    if rows:
        colors = [CLASS_COLORS[of] for of in labels]
        encoding = {
            "y": category("checkpoint", sort=list(run.checkpoints), title=None),
            "x": quantity("share", **SHARE),
            "color": colored_by("label", [*labels.values()], colors)
            | {"legend": {"columns": 2, "labelLimit": 260}},
            "order": quantity("rank"),
        }
        height = 28 * len(run.checkpoints)
        yield panel_of(benchmark, rows, height, encoding, mark={"type": "bar", "tooltip": True})


BENCHMARK_FIGURES: dict[str, tuple[str, str, Callable[[Run, str], Iterator[Panel]]]] = {
    "accuracy": ("Before and after", "Dots with 95 % intervals.", rate_panels),
    "breakdown": (
        "By level, tag and subject",
        "Greedy answer accuracy with 95 % intervals.",
        breakdown_panels,
    ),
    "pass_at_k": (
        "pass@k",
        "Chance that at least one of k samples is right, with 95 % bands.",
        pass_at_k_panels,
    ),
    "classes": (
        "Four classes",
        "Format and answer, graded separately; share of completions.",
        class_panels,
    ),
}
"""By name: title, caption, and the panels of a benchmark."""


def reward_figure(run: Run) -> Figure:
    """Distribution of the total reward on the first benchmark, a panel a checkpoint."""
    benchmark = run.benchmarks[0]
    rewards = {
        name: [row.reward for row in run.completions[name] if row.benchmark == benchmark]
        for name in run.checkpoints
    }
    label_of, order = _bins([reward for of in rewards.values() for reward in of])
    encoding = {
        "x": category(
            "bin",
            type="ordinal",
            sort=order,
            title="total reward",
            scale={"domain": order},
            axis={"labelAngle": 0, "labelOverlap": True},
        ),
        "y": quantity("share", **SHARE),
    }
    panels = []
    for name, color in colors_of(run.checkpoints).items() if order else ():
        counts = Counter(map(label_of, rewards[name]))
        rows = [{"bin": of, "share": counts[of] / max(1, counts.total())} for of in order]
        mark = {"type": "bar", "color": color, "tooltip": True}
        panels.append(panel_of(name, rows, 140, encoding, mark=mark))
    caption = f"Total reward of all completions of {benchmark}; share of completions."
    return Figure("rewards", "Rewards before and after", caption, tuple(panels), columns=3)


def _bins(values: Sequence[float]) -> tuple[Callable[[float], str], list[str]]:
    """A function from a reward to its bin's label, and the labels from left to right."""
    distinct = sorted(set(values))
    if len(distinct) <= MAX_BINS:
        return (lambda value: f"{value:g}"), [f"{value:g}" for value in distinct]
    low, width = distinct[0], (distinct[-1] - distinct[0]) / MAX_BINS
    labels = [f"{low + width * (index + 0.5):.2f}" for index in range(MAX_BINS)]
    return (lambda value: labels[min(MAX_BINS - 1, int((value - low) / width))]), labels


PUBLISHED = {
    "match_format_exactly": " S0's source states: mean reward −6.5 in the "
    "first 20 steps, −3 to 0 by step 50, 0 to +5 by step 100; validated, format %, answer % and "
    "reward are 85, 50, 4.0 after SFT, 95, 65, 7.5 at step 50 and 98, 70, 9.0 at step 100.",
}
"""By a reward of a stack, what the stack's source expects of the curve (docs/expectations.md)."""


def curve_figure(stage: str, curve: Curve) -> Figure:
    """The training curves of one stage, a panel a measure; rewards by component share one."""
    titles, components = CURVES[stage], reward_components(curve)
    flat = [name for name in titles if name in curve and not any(v for _, v in curve[name])]
    measures = {"total reward": {"reward": "reward"}, "reward by component": components} | {
        title: {name: name} for name, title in titles.items() if name not in flat
    }
    panels = []
    for title, names in measures.items():
        rows = [row for name, series in names.items() for row in series_rows(curve, name, series)]
        if rows:
            panels.append(_curve_panel(title, rows, list(names.values())))
    caption = "Faint: each logged step. Strong: running mean."
    if stage == "grpo":
        caption += f" {LOSS_SAYS_NOTHING}"
    for name in components.values():
        caption += PUBLISHED.get(name, "")
    if flat:
        caption += f" Zero throughout: {', '.join(titles[name] for name in flat)}."
    return Figure(f"{stage}_curves", f"Training: {stage}", caption, tuple(panels))


def _curve_panel(title: str, rows: Sequence[Mapping[str, Any]], series: Sequence[str]) -> Panel:
    """Values over training steps, one line a series; noisy ones behind their running mean."""
    reach = len(rows) // len(series) // 25
    encoding = {
        "x": STEP,
        "y": quantity("value", title=None, scale={"zero": False}),
        "color": colored_by("series", series, SERIES_COLORS),
    }
    window = {
        "window": [{"op": "mean", "field": "value", "as": "mean"}],
        "frame": [-reach, reach],
        "groupby": ["series"],
        "sort": [{"field": "step"}],
    }
    smooth = {
        "transform": [window],
        "mark": {"type": "line", "strokeWidth": 2},
        "encoding": {"y": quantity("mean", title=None)},
    }
    raw = {"mark": {"type": "line", "strokeWidth": 1, "opacity": 0.35, "tooltip": True}}
    layers = [raw, smooth] if reach else [{"mark": {"type": "line", "point": len(rows) < 3}}]
    return panel_of(title, rows, 180, encoding, layer=layers)


def reward_components(curve: Curve) -> dict[str, str]:
    """By column, the name of the reward function whose mean it is; none for a stage without."""
    means = (name for name in curve if name.startswith("rewards/") and name.endswith("/mean"))
    return {name: name.split("/")[1] for name in means}


def series_rows(
    curve: Curve, column: str, series: str, *, error: str = "", scale: float = 1.0
) -> list[dict[str, Any]]:
    """{"step", "series", "value"} of a column and, where its error is known, a 95 % band.

    Args:
        error: the column that `scale` makes a standard error of.
    """
    errors = dict(curve.get(error, ()))
    rows = []
    for step, value in curve.get(column, ()):
        reach = NORMAL_95 * scale * errors.get(step, math.nan)
        band = {} if math.isnan(reach) else {"low": value - reach, "high": value + reach}
        rows.append({"step": step, "series": series, "value": value, **band})
    return rows


def validation_figure(validations: Mapping[str, Curve]) -> Figure:
    """What validation measured while training, from step 0 to the end, a panel a stage."""
    panels = []
    for stage, curve in validations.items():
        sets = {name or "first set": column for name, column in validation_sets(curve).items()}
        rows = [
            row | {end: min(1.0, max(0.0, row.get(end, row["value"]))) for end in ("low", "high")}
            for name, column in sets.items()
            for row in series_rows(curve, column, name, error=f"{column}_se")
        ]
        if rows:
            panels.append(measured(rows, title=f"{stage}, answer accuracy", series=list(sets)))
    caption = "Greedy answers with 95 % bands; dashed: at step 0."
    return Figure("validation", "Validation while training", caption, tuple(panels))


def validation_sets(curve: Curve) -> dict[str, str]:
    """By set that was measured, '' for the first one, the column of its answer accuracy."""
    columns = {name: name.rpartition("/") for name, values in curve.items() if values}
    return {of[0]: name for name, of in columns.items() if of[2] == "answer_accuracy"}


def _bounds(numbers: Mapping[str, float], name: str) -> dict[str, float]:
    """Value, 95 % interval and n of one rate of the metrics."""
    error = numbers.get(f"{name}_se", math.nan)
    return _interval(Estimate(numbers[name], error, int(numbers.get("n", 1))))


def _interval(estimate: Estimate) -> dict[str, float]:
    interval = share_interval(estimate)
    bounds = {"value": estimate.value, "low": interval.low, "high": interval.high}
    return {name: round(bound, 5) for name, bound in bounds.items()} | {"n": estimate.n}
