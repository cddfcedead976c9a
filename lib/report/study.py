"""The study: does reinforcement help on every seed, and more than as much further SFT?

One line of evidence per seed, each a paired difference on the same held-out problems, and the mean
over seeds with its own interval (Student's t over seeds, since seeds are the random units).
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from lib.artifacts.completions import GradedCompletion, read_graded
from lib.errors import UserError
from lib.report.comparisons import compare_pair
from lib.report.text import Table, markdown_table, percent, points
from lib.stats import Difference, mean_estimate, seeds_interval

SFT, GRPO, CONTROL = "sft", "grpo", "control"
UNSEEN = "unseen_equations"
PAIRS = {f"{before}_to_{GRPO}": (before, GRPO) for before in (SFT, CONTROL)}


@dataclasses.dataclass(frozen=True)
class SeedRun:
    """What one seed's three checkpoints answered.

    Attributes:
        metrics: by checkpoint (`sft`, `grpo`, `control`), as `evaluate` writes them.
        completions: by checkpoint; the problems are the same.
    """

    seed: int
    metrics: Mapping[str, Mapping[str, Any]]
    completions: Mapping[str, Sequence[GradedCompletion]]


def run_experiment(name: str, target: str, *changes: str) -> None:
    """Run one DVC experiment in a copy of the checkout, so that the workspace stays as it is.

    An older one of that name goes first: `--force` would take its name too, and switch off the
    run-cache with it.
    """
    dvc = [sys.executable, "-m", "dvc", "exp"]
    subprocess.run([*dvc, "remove", name], capture_output=True, check=False)
    sets = [argument for change in changes for argument in ("--set-param", change)]
    click.echo(f"study experiment={name} {' '.join(changes)}")
    command = [*dvc, "run", "--temp", "--name", name, *sets, target]
    if subprocess.run(command, check=False).returncode:
        raise UserError(f"study: experiment {name} failed; see above")


def read_seed_run(seed: int) -> SeedRun:
    """What the experiments of one seed wrote, read from their revisions."""
    import dvc.api

    revisions = {
        SFT: (f"study-seed-{seed}", "sft"),
        GRPO: (f"study-seed-{seed}", "grpo"),
        CONTROL: (f"study-control-{seed}", "sft"),
    }
    metrics, completions = {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, (revision, checkpoint) in revisions.items():
            path = Path(scratch) / f"{name}.jsonl"
            path.write_text(dvc.api.read(f"data/graded/{checkpoint}.jsonl", rev=revision))
            completions[name] = list(read_graded(path))
            text = dvc.api.read(f"reports/metrics/evaluate/{checkpoint}.json", rev=revision)
            metrics[name] = json.loads(text)
    return SeedRun(seed=seed, metrics=metrics, completions=completions)


def study_metrics(runs: Sequence[SeedRun], *, benchmark: str) -> dict[str, Any]:
    """Numbers by seed and their means: levels of each checkpoint, differences of each pair."""
    seeds = {f"seed_{run.seed}": _seed_numbers(run, benchmark=benchmark) for run in runs}
    means: dict[str, Any] = {}
    for pair in PAIRS:
        for measure in next(iter(seeds.values()))[pair]:
            of_seeds = [seed[pair][measure] for seed in seeds.values()]
            values = [numbers["difference"] for numbers in of_seeds]
            interval = seeds_interval(values, n=of_seeds[0]["n"])
            mean = mean_estimate(values).value
            numbers = {"difference": mean, "low": interval.low, "high": interval.high}
            means.setdefault(pair, {})[measure] = {**numbers, "num_seeds": len(seeds)}
    return {**seeds, "mean": means}


def _seed_numbers(run: SeedRun, *, benchmark: str) -> dict[str, Any]:
    # Where the sequence of equations occurs in no training problem.
    unseen = {
        name: [row for row in rows if UNSEEN in row.tags] for name, rows in run.completions.items()
    }
    return {
        **{name: _levels(run.metrics[name][benchmark]) for name in (SFT, GRPO, CONTROL)},
        **{
            pair: _differences(run.completions, before, after, benchmark)
            for pair, (before, after) in PAIRS.items()
        },
        "unseen": _differences(unseen, SFT, GRPO, benchmark).get("greedy_answer_accuracy", {}),
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
) -> dict[str, dict[str, float]]:
    return {
        f"{comparison.mode}_{comparison.measure}": _numbers(comparison.change)
        for comparison in compare_pair(completions, before=before, after=after)
        if comparison.benchmark == benchmark
    }


def _numbers(change: Difference) -> dict[str, float]:
    return {
        "before": change.before,
        "after": change.after,
        "difference": change.difference.value,
        "low": change.interval.low,
        "high": change.interval.high,
        "n": change.difference.n,
    }


def study_markdown(metrics: Mapping[str, Any], *, control: str) -> str:
    """The study as a page; `control` describes the control checkpoint."""
    seeds = {name.replace("_", " "): of for name, of in metrics.items() if name != "mean"}
    measures = list(next(iter(seeds.values()))[SFT])
    heads = [measure.replace("_", " ").replace("pass at ", "pass@") for measure in measures]
    levels = [
        (
            name,
            checkpoint,
            *(
                f"{value:.2f}" if measure.endswith("equations") else percent(value)
                for measure, value in numbers[checkpoint].items()
            ),
        )
        for name, numbers in seeds.items()
        for checkpoint in (SFT, GRPO, CONTROL)
    ]
    columns = [*seeds.values(), metrics["mean"]]
    differences = [
        (
            f"{before} → {after}",
            measure.replace("_", " "),
            *(_with_interval(column[pair][measure]) for column in columns),
        )
        for pair, (before, after) in PAIRS.items()
        for measure in metrics["mean"][pair]
    ]
    unseen = [
        (
            name,
            str(numbers["n"]),
            percent(numbers["before"]),
            percent(numbers["after"]),
            _with_interval(numbers),
        )
        for name, numbers in ((name, of["unseen"]) for name, of in seeds.items())
        if numbers
    ]
    tables = [
        Table("Checkpoints", ("seed", "checkpoint", *heads), tuple(levels)),
        Table("Differences, in points", ("pair", "measure", *seeds, "mean"), tuple(differences)),
        Table(
            "Unseen equations, greedy", ("seed", "problems", SFT, GRPO, "difference"), tuple(unseen)
        ),
    ]
    parts = [
        "# Study: three seeds and a control",
        f"Held-out problems; the control is {control}. Intervals (95 %) of a seed are paired over "
        "problems, those of the mean are over seeds. Unseen equations: problems whose sequence "
        "of equations occurs in no training problem.",
        *(f"## {table.title}\n\n{markdown_table(table)}" for table in tables),
    ]
    return "\n\n".join(parts) + "\n"


def _with_interval(numbers: Mapping[str, float]) -> str:
    value, low, high = (points(numbers[name]) for name in ("difference", "low", "high"))
    return f"{value} ({low} to {high})"
