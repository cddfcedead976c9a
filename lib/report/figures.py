"""Which figures the report shows, from a run's numbers."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lib.artifacts.completions import UNGRADED, GradedCompletion
from lib.report.charts import (
    PALETTE,
    Figure,
    Panel,
    bars,
    colors_of,
    curve_with_band,
    lines,
    measured,
    stacked,
    whiskers,
)
from lib.report.inputs import Curve, Run, main_mode
from lib.report.tables import BREAKDOWNS, CLASSES, measures, natural_order
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
CURVES["raft"] = CURVES["sft"]
"""By stage: logged column → what it measures, in the order of the panels."""

MAX_BINS = 12

NORMAL_95 = 1.96
"""Standard errors to either side that hold 95 % of a normal distribution."""


def report_figures(run: Run) -> list[Figure]:
    """All figures that the run has numbers for."""
    figures = [accuracy_figure(run), breakdown_figure(run), pass_at_k_figure(run)]
    figures += [class_figure(run), reward_figure(run), validation_figure(run.validations)]
    figures += [curve_figure(stage, run.curves[stage]) for stage in CURVES if stage in run.curves]
    return [figure for figure in figures if figure.panels]


def accuracy_figure(run: Run) -> Figure:
    """The rates of the headline table with their intervals, a panel a benchmark."""
    panels = []
    for benchmark in run.benchmarks:
        rates = [row for row in measures(run.modes(run.checkpoints[0], benchmark)) if row.is_rate]
        rows = [
            {"label": rate.title, "checkpoint": name, **_bounds(numbers, rate.name)}
            for rate in rates
            for name in run.checkpoints
            if rate.name in (numbers := run.modes(name, benchmark).get(rate.mode, {}))
        ]
        labels = [rate.title for rate in rates]
        panels.append(whiskers(rows, title=benchmark, checkpoints=run.checkpoints, labels=labels))
    return Figure("accuracy", "Before and after", "Dots with 95 % intervals.", tuple(panels))


def breakdown_figure(run: Run) -> Figure:
    """Answer accuracy by level, tag and subject, where a breakdown shows more than the whole."""
    panels = []
    for benchmark in run.benchmarks:
        modes = {name: run.modes(name, benchmark) for name in run.checkpoints}
        for group, what in BREAKDOWNS.items():
            columns = {name: of.get(main_mode(of), {}).get(group, {}) for name, of in modes.items()}
            labels = sorted({key for of in columns.values() for key in of}, key=natural_order)
            rows = [
                {
                    "label": label,
                    "checkpoint": name,
                    **_bounds(of[label], "answer_accuracy"),
                }
                for label in labels
                for name, of in columns.items()
                if label in of
            ]
            # One level or subject is the whole again; one tag is not.
            if len(labels) > (group != "by_tag"):
                title = f"{benchmark}, by {what}"
                panels.append(
                    whiskers(rows, title=title, checkpoints=run.checkpoints, labels=labels)
                )
    caption = "Greedy answer accuracy with 95 % intervals."
    return Figure("breakdown", "By level, tag and subject", caption, tuple(panels))


def pass_at_k_figure(run: Run) -> Figure:
    """pass@k over k from the sampled completions."""
    panels = []
    for benchmark in run.benchmarks:
        rows = [
            {"checkpoint": name, "k": k, **_interval(estimate)}
            for name in run.checkpoints
            for k, estimate in pass_at_k_curve(run.completions[name], benchmark)
        ]
        if len({row["k"] for row in rows}) > 1:
            panels.append(
                curve_with_band(
                    rows, title=benchmark, x_title="samples k", checkpoints=run.checkpoints
                )
            )
    caption = "Chance that at least one of k samples is right, with 95 % bands."
    return Figure("pass_at_k", "pass@k", caption, tuple(panels))


def pass_at_k_curve(
    rows: Sequence[GradedCompletion], benchmark: str
) -> Iterator[tuple[int, Estimate]]:
    """pass@k for every k up to the number of samples that all problems have."""
    grades: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        if (row.benchmark, row.mode) == (benchmark, "sampled") and row.decided_by != UNGRADED:
            grades[row.problem_id].append(row.answer_ok)
    for k in range(1, min(map(len, grades.values()), default=0) + 1):
        chances = [
            pass_at_k(num_completions=len(of), num_correct=sum(of), k=k) for of in grades.values()
        ]
        yield k, mean_estimate(chances)


def class_figure(run: Run) -> Figure:
    """Shares of the four classes."""
    panels = []
    labels = [f"{label} {meaning}" for label, meaning in CLASSES.items()]
    for benchmark in run.benchmarks:
        modes = {name: run.modes(name, benchmark) for name in run.checkpoints}
        rows = [
            {
                "checkpoint": name,
                "label": labels[rank],
                "share": numbers[f"class_{label}"],
                "rank": rank,
            }
            for name in run.checkpoints
            for rank, label in enumerate(CLASSES)
            if f"class_{label}" in (numbers := modes[name].get(main_mode(modes[name]), {}))
        ]
        if rows:
            panels.append(
                stacked(rows, title=benchmark, checkpoints=run.checkpoints, labels=labels)
            )
    caption = "Format and answer, graded separately; share of completions."
    return Figure("classes", "Four classes", caption, tuple(panels))


def reward_figure(run: Run) -> Figure:
    """Distribution of the total reward on the first benchmark, a panel a checkpoint."""
    benchmark = run.benchmarks[0]
    rewards = {
        name: [row.reward for row in run.completions[name] if row.benchmark == benchmark]
        for name in run.checkpoints
    }
    pooled = [reward for of in rewards.values() for reward in of]
    if not pooled:
        return Figure("rewards", "", "", ())
    label_of, order = _bins(pooled)
    panels = []
    colors = colors_of(run.checkpoints)
    for name, of in rewards.items():
        counts = Counter(label_of(reward) for reward in of)
        rows = [{"bin": label, "share": counts[label] / max(1, len(of))} for label in order]
        panels.append(
            bars(rows, title=name, x_title="total reward", color=colors[name], order=order)
        )
    caption = f"Total reward of all completions of {benchmark}; share of completions."
    return Figure("rewards", "Rewards before and after", caption, tuple(panels), columns=3)


def _bins(values: Sequence[float]) -> tuple[Any, list[str]]:
    """A function from a reward to its bin's label, and the labels from left to right."""
    distinct = sorted(set(values))
    if len(distinct) <= MAX_BINS:
        return (lambda value: f"{value:g}"), [f"{value:g}" for value in distinct]
    low, width = distinct[0], (distinct[-1] - distinct[0]) / MAX_BINS
    labels = [f"{low + width * (index + 0.5):.2f}" for index in range(MAX_BINS)]
    return (lambda value: labels[min(MAX_BINS - 1, int((value - low) / width))]), labels


def curve_figure(stage: str, curve: Curve) -> Figure:
    """The training curves of one stage, a panel a measure; rewards by component share one."""
    titles = CURVES[stage]
    flat = [name for name in titles if name in curve and not any(v for _, v in curve[name])]
    panels = [
        _curve_panel(curve, {"reward": "reward"}, "total reward"),
        _curve_panel(curve, reward_components(curve), "reward by component"),
        *(
            _curve_panel(curve, {name: name}, title)
            for name, title in titles.items()
            if name not in flat
        ),
    ]
    caption = "Faint: each logged step. Strong: running mean."
    if flat:
        caption += f" Zero throughout: {', '.join(titles[name] for name in flat)}."
    logged = tuple(panel for panel in panels if panel)
    return Figure(f"{stage}_curves", f"Training: {stage}", caption, logged)


def reward_components(curve: Curve) -> dict[str, str]:
    """By column, the name of the reward function whose mean it is; none for a stage without."""
    means = (name for name in curve if name.startswith("rewards/") and name.endswith("/mean"))
    return {name: name.split("/")[1] for name in means}


def validation_figure(validations: Mapping[str, Curve]) -> Figure:
    """What validation measured while training, from step 0 to the end, a panel a stage."""
    panels = []
    for stage, curve in validations.items():
        rows = [
            {"step": step, "series": benchmark or "first set", **_around(value, error)}
            for benchmark, values in validation_sets(curve).items()
            for (step, value), error in values
        ]
        if rows:
            series = list(dict.fromkeys(str(row["series"]) for row in rows))
            panels.append(measured(rows, title=f"{stage}, answer accuracy", series=series))
    caption = "Greedy answers with 95 % bands; dashed: at step 0."
    return Figure("validation", "Validation while training", caption, tuple(panels))


def validation_sets(curve: Curve) -> dict[str, list[tuple[tuple[int, float], float]]]:
    """By set, '' for the first one: answer accuracy by step, with its standard error."""
    sets = {}
    for name, values in curve.items():
        benchmark, _, measure = name.rpartition("/")
        if measure == "answer_accuracy" and values:
            errors = dict(curve.get(f"{name}_se", ()))
            sets[benchmark] = [(point, errors.get(point[0], math.nan)) for point in values]
    return sets


def _around(value: float, error: float) -> dict[str, float]:
    reach = 0.0 if math.isnan(error) else NORMAL_95 * error
    return {"value": value, "low": max(0.0, value - reach), "high": min(1.0, value + reach)}


def _curve_panel(curve: Curve, names: Mapping[str, str], title: str) -> Panel | None:
    rows = [
        {"step": step, "series": series, "value": value}
        for name, series in names.items()
        for step, value in curve.get(name, ())
    ]
    color = PALETTE[2] if len(names) == 1 else None
    return lines(rows, title=title, series=list(names.values()), color=color) if rows else None


def _bounds(numbers: Mapping[str, float], name: str) -> dict[str, float]:
    """Value, 95 % interval and n of one rate of the metrics."""
    error = numbers.get(f"{name}_se", math.nan)
    return _interval(Estimate(numbers[name], error, int(numbers.get("n", 1))))


def _interval(estimate: Estimate) -> dict[str, float]:
    interval = share_interval(estimate)
    bounds = {"value": estimate.value, "low": interval.low, "high": interval.high}
    return {name: round(bound, 5) for name, bound in bounds.items()} | {"n": estimate.n}
