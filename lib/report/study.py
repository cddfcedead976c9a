"""The study: does reinforcement help on every seed, and more than as much further SFT?

One line of evidence per seed, each a paired difference on the same held-out problems, and the mean
over seeds with its own interval (Student's t over seeds, since seeds are what is drawn).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lib.completions import GradedCompletion
from lib.report.comparisons import Comparison, compare_pair
from lib.report.markdown import markdown_table
from lib.report.tables import Table
from lib.report.text import percent, points
from lib.stats import Difference, mean_estimate

SFT, GRPO, CONTROL = "sft", "grpo", "control"
UNSEEN = "unseen_equations"
PAIRS = ((SFT, GRPO), (CONTROL, GRPO))


@dataclasses.dataclass(frozen=True)
class SeedRun:
    """What one seed's three checkpoints said.

    Attributes:
        metrics: by checkpoint (`sft`, `grpo`, `control`), as `evaluate` writes them.
        completions: by checkpoint; the problems are the same.
    """

    seed: int
    metrics: Mapping[str, Mapping[str, Any]]
    completions: Mapping[str, Sequence[GradedCompletion]]


def study_metrics(runs: Sequence[SeedRun], *, benchmark: str) -> dict[str, Any]:
    """Numbers by seed and their means: levels of each checkpoint, differences of each pair."""
    seeds = {f"seed_{run.seed}": _seed_numbers(run, benchmark=benchmark) for run in runs}
    return {**seeds, "mean": _means(list(seeds.values()))}


def _seed_numbers(run: SeedRun, *, benchmark: str) -> dict[str, Any]:
    return {
        **{name: _levels(run.metrics[name][benchmark]) for name in (SFT, GRPO, CONTROL)},
        **{
            f"{before}_to_{after}": _differences(run.completions, before, after, benchmark)
            for before, after in PAIRS
        },
        "unseen": _unseen(run.completions, benchmark),
    }


def _levels(modes: Mapping[str, Any]) -> dict[str, float]:
    greedy, sampled = modes["greedy"], modes["sampled"]
    k = sampled["num_samples"]
    return {
        "format_accuracy": greedy["format_accuracy"],
        "greedy_answer_accuracy": greedy["answer_accuracy"],
        "sampled_pass_at_1": sampled["pass_at_1"],
        f"sampled_pass_at_{k}": sampled[f"pass_at_{k}"],
        "sampled_mean_equations": sampled["mean_equations"],
    }


def _differences(
    completions: Mapping[str, Sequence[GradedCompletion]], before: str, after: str, benchmark: str
) -> dict[str, Any]:
    return {
        f"{comparison.mode}_{comparison.measure}": _interval(comparison.found)
        for comparison in _compared(completions, before, after, benchmark)
    }


def _unseen(
    completions: Mapping[str, Sequence[GradedCompletion]], benchmark: str
) -> dict[str, Any]:
    """Greedy accuracy where the sequence of equations occurs in no training problem."""
    chosen = {
        name: [row for row in rows if UNSEEN in row.tags] for name, rows in completions.items()
    }
    greedy = [c for c in _compared(chosen, SFT, GRPO, benchmark) if c.mode == "greedy"]
    return _interval(greedy[0].found) if greedy else {}


def _compared(
    completions: Mapping[str, Sequence[GradedCompletion]], before: str, after: str, benchmark: str
) -> list[Comparison]:
    found = compare_pair(completions, before=before, after=after)
    return [comparison for comparison in found if comparison.benchmark == benchmark]


def _interval(found: Difference) -> dict[str, float]:
    return {
        "before": found.before,
        "after": found.after,
        "difference": found.difference.value,
        "low": found.interval.low,
        "high": found.interval.high,
        "n": found.difference.n,
    }


def _means(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over seeds of each difference, with its 95 % interval."""
    means: dict[str, Any] = {}
    for before, after in PAIRS:
        pair = f"{before}_to_{after}"
        for measure in seeds[0][pair]:
            mean = mean_estimate([seed[pair][measure]["difference"] for seed in seeds])
            interval = mean.interval()
            numbers = {"difference": mean.value, "low": interval.low, "high": interval.high}
            means.setdefault(pair, {})[measure] = {**numbers, "num_seeds": len(seeds)}
    return means


def study_markdown(metrics: Mapping[str, Any], *, control: str) -> str:
    """The study as a page; `control` says in words what the control checkpoint is."""
    seeds = {name: numbers for name, numbers in metrics.items() if name != "mean"}
    tables = [_levels_table(seeds), _difference_table(metrics), _unseen_table(seeds)]
    parts = [
        "# Study: three seeds and a control",
        f"Held-out problems; the control is {control}. Intervals (95 %) of a seed are paired over "
        "problems, those of the mean are over seeds. Unseen equations: problems whose sequence "
        "of equations occurs in no training problem.",
        *(f"## {table.title}\n\n{markdown_table(table)}" for table in tables),
    ]
    return "\n\n".join(parts) + "\n"


def _levels_table(seeds: Mapping[str, Any]) -> Table:
    measures = list(next(iter(seeds.values()))[SFT])
    rows = [
        (
            name.replace("_", " "),
            checkpoint,
            *(_level(measure, numbers[checkpoint][measure]) for measure in measures),
        )
        for name, numbers in seeds.items()
        for checkpoint in (SFT, GRPO, CONTROL)
    ]
    heads = [measure.replace("_", " ").replace("pass at ", "pass@") for measure in measures]
    return Table("Checkpoints", ("seed", "checkpoint", *heads), tuple(rows))


def _level(measure: str, value: float) -> str:
    return f"{value:.2f}" if measure.endswith("equations") else percent(value)


def _difference_table(metrics: Mapping[str, Any]) -> Table:
    rows = [
        (f"{before} → {after}", measure.replace("_", " "), *cells)
        for before, after in PAIRS
        for measure, cells in _cells(metrics, f"{before}_to_{after}")
    ]
    seeds = (name.replace("_", " ") for name in metrics if name != "mean")
    return Table("Differences, in points", ("pair", "measure", *seeds, "mean"), tuple(rows))


def _cells(metrics: Mapping[str, Any], pair: str) -> list[tuple[str, list[str]]]:
    names = [name for name in metrics if name != "mean"]
    return [
        (measure, [_with_interval(metrics[name][pair][measure]) for name in (*names, "mean")])
        for measure in metrics["mean"][pair]
    ]


def _unseen_table(seeds: Mapping[str, Any]) -> Table:
    rows = [
        (
            name.replace("_", " "),
            str(numbers["unseen"]["n"]),
            percent(numbers["unseen"]["before"]),
            percent(numbers["unseen"]["after"]),
            _with_interval(numbers["unseen"]),
        )
        for name, numbers in seeds.items()
        if numbers["unseen"]
    ]
    return Table(
        "Unseen equations, greedy", ("seed", "problems", SFT, GRPO, "difference"), tuple(rows)
    )


def _with_interval(numbers: Mapping[str, float]) -> str:
    value, low, high = (points(numbers[name]) for name in ("difference", "low", "high"))
    return f"{value} ({low} to {high})"
