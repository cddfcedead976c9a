"""A GRPO step of reckon's trainer beside one of stock TRL's, on one CPU thread.

    python -m tests.bench.grpo

writes results.json and README.md in this folder. Both trainers start from the same weights with the
same problems, seed, rewards, batch and number of threads, in turns, in one process.
"""

import json
import os
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
import trl
from ruamel.yaml import YAML

from lib.engines.runtime import configure
from lib.params import Params, compose_preset, parse_params
from lib.problems.schema import Problem
from tests.bench.grpo.run import PARTS, Measured, measured, opened
from tests.bench.grpo.start import sized, write_start

FOLDER = Path(__file__).parent
KINDS = ("trl", "reckon")
LEARNING_RATE = {"0.48 M": 0.002, "3.2 M": 0.001}
LEARNING_STEPS = 40
"""Of the runs that are long enough to compare what was learned."""

PLAN = (
    # size, precision, pairs of runs, steps of each
    ("0.48 M", "fp32", 3, LEARNING_STEPS),
    ("0.48 M", "bf16", 2, 3),
    ("3.2 M", "fp32", 2, 2),
    ("3.2 M", "bf16", 2, 2),
)
SFT_PROBLEMS = 2880


def tiny(size: str, precision: str, *, seed: int, steps: int) -> Params:
    """The tiny preset with another model, precision, seed and number of steps."""
    params = parse_params(YAML(typ="safe").load(compose_preset("tiny-cpu")), origin="tiny-cpu")
    model = sized(params.model, size).model_copy(update={"mixed_precision": precision})
    grpo = params.grpo.model_copy(update={"max_steps": steps})
    return params.model_copy(update={"model": model, "grpo": grpo, "seed": seed})


def compare(
    size: str, precision: str, pairs: int, steps: int, *, start: Path, problems: list[Problem]
) -> dict[str, Any]:
    """Alternating runs, a seed for each pair; which of the two is first alternates too."""
    runs: dict[str, list[Measured]] = {kind: [] for kind in KINDS}
    for seed in range(pairs):
        params = tiny(size, precision, seed=seed, steps=steps)
        for kind in KINDS if seed % 2 else KINDS[::-1]:
            with opened(kind, start, problems, params) as trainer:
                runs[kind].append(measured(trainer))
    ratios = [
        theirs / ours
        for stock, reckon in zip(runs["trl"], runs["reckon"], strict=True)
        for theirs, ours in zip(stock.steps, reckon.steps, strict=True)
    ]
    return {
        "size": size,
        "precision": precision,
        "pairs": pairs,
        "steps": steps,
        "step_s": {k: statistics.median(s for r in runs[k] for s in r.steps) for k in KINDS},
        "ratio": quartiles(ratios),
        "parts_s": {
            kind: {p: sum(r.parts[p] for r in runs[kind]) / (pairs * steps) for p in PARTS}
            for kind in KINDS
        },
        **(learned(runs) if steps >= LEARNING_STEPS else {}),
    }


def learned(runs: dict[str, list[Measured]]) -> dict[str, Any]:
    """Mean reward of each quarter of the runs, and the difference in the last, paired by seed."""
    quarters = {k: [_quarters(run.rewards) for run in runs[k]] for k in KINDS}
    gaps = [ours[-1] - theirs[-1] for theirs, ours in zip(*quarters.values(), strict=True)]
    return {
        "rewards": {
            kind: [statistics.fmean(quarter) for quarter in zip(*quarters[kind], strict=True)]
            for kind in KINDS
        },
        "reward_gap": [statistics.fmean(gaps), statistics.stdev(gaps) / len(gaps) ** 0.5],
    }


def _quarters(rewards: list[float]) -> list[float]:
    length = len(rewards) // 4
    return [statistics.fmean(rewards[i * length : (i + 1) * length]) for i in range(4)]


def gradient_gap(size: str, *, start: Path, problems: list[Problem]) -> dict[str, float]:
    """How far the first step's gradients are apart on one set of rollouts, in fp32.

    Returns:
        the largest difference of an entry, and the norm of all differences over the gradient's.
    """
    params = tiny(size, "fp32", seed=0, steps=1)
    with opened("reckon", start, problems, params) as trainer:
        ours = measured(trainer)
    with opened("trl", start, problems, params) as trainer:
        prompts, completions, mask, texts, _, *rest = ours.rollouts
        theirs = measured(trainer, injected=(prompts, completions, mask, texts, None, *rest))
    gradient = torch.cat([g.flatten() for g in theirs.gradients.values()])
    difference = torch.cat([ours.gradients[n].flatten() for n in theirs.gradients]) - gradient
    return {
        "largest": float(difference.abs().max()),
        "relative_norm": float(difference.norm() / gradient.norm()),
    }


def quartiles(values: list[float]) -> list[float]:
    """Median, first and third quartile."""
    first, middle, third = statistics.quantiles(values, n=4)
    return [middle, first, third]


def render(results: dict[str, Any]) -> str:
    """The README, a function of results.json alone."""
    steps = [
        f"| {row['size']} | {row['precision']} | {row['step_s']['trl']:.2f} "
        f"| {row['step_s']['reckon']:.2f} "
        "| **{:.2f}** ({:.2f}–{:.2f}) ".format(*row["ratio"])
        + f"| {row['pairs']} × {row['steps']} |"
        for row in results["rows"]
    ]
    parts = [
        f"| {row['size']} | {row['precision']} | {kind} | "
        + " | ".join(f"{row['parts_s'][kind][part]:.3f}" for part in PARTS)
        + " |"
        for row in results["rows"]
        for kind in KINDS
    ]
    (long,) = (row for row in results["rows"] if "rewards" in row)
    rewards = [
        f"| {kind} | " + " | ".join(f"{mean:.3f}" for mean in long["rewards"][kind]) + " |"
        for kind in KINDS
    ]
    difference = "{:+.3f} ± {:.3f}".format(*long["reward_gap"])
    gaps = "; ".join(
        f"{size} {gap['largest']:.1e} ({gap['relative_norm']:.1e})"
        for size, gap in results["gradient_gap"].items()
    )
    return f"""# A GRPO step beside stock TRL's

Written by `python -m tests.bench.grpo`; the numbers are in results.json. TRL {results["trl"]}'s
`GRPOTrainer` with transformers' `generate` against reckon's trainer: same weights (a short SFT on
{results["sft_problems"]} problems), problems, seeds, rewards, batch (32 problems × 8 completions of
at most 48 tokens, micro-batches of 32) and one thread, in turns in one process
({results["machine"]}, torch {results["torch"]}). Times are the process's CPU seconds: the machine
was shared. Nothing here was run on a GPU.

## A step

Median of all steps, and the ratio of stock to reckon over steps of the same number and seed: median
(quartiles).

| parameters | precision | TRL, s | reckon, s | ratio | runs × steps |
| --- | --- | ---: | ---: | ---: | ---: |
{chr(10).join(steps)}

## Where the time goes, seconds a step

*forward* is the loss with its log-probs and entropies, *rest* the optimiser, padding and logging.

| parameters | precision | trainer | {" | ".join(PARTS)} |
| --- | --- | --- |{" ---: |" * len(PARTS)}
{chr(10).join(parts)}

- generation: `lib.engines.decoding` computes a prompt once for its 8 completions, keeps room for
  keys and values, drops rows that have ended, draws in few operations.
- forward and backward: `lib.trainers.batching` computes a prompt once for its completions, packs
  rows by prompt and length, leaves out micro-batches whose advantages are all 0.
- sync: the engine generates with the policy's own weights.

## The same learning

Largest difference between entries of the first step's gradients on the same rollouts (norm of the
difference over the gradient's): {gaps}.

Mean reward in each quarter of {long["steps"]} steps from the same start, over {long["pairs"]} seeds
({long["size"]}, {long["precision"]}). The two draw different completions, so that equal is equal
within noise. The last quarter, reckon − TRL, paired by seed, ± standard error:
{difference}.

| | first | second | third | last |
| --- | ---: | ---: | ---: | ---: |
{chr(10).join(rewards)}
"""


def main() -> None:
    """Run the plan and write both files."""
    configure(seed=0, threads=1)
    results: dict[str, Any] = {
        "machine": f"{platform.machine()} CPU with {os.cpu_count()} cores",
        "torch": torch.__version__,
        "trl": trl.__version__,
        "sft_problems": SFT_PROBLEMS,
        "gradient_gap": {},
        "rows": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        starts = {}
        for size in LEARNING_RATE:
            start = Path(folder) / size.replace(" ", "-")
            problems = write_start(
                start,
                tiny(size, "fp32", seed=0, steps=1),
                size=size,
                num_problems=SFT_PROBLEMS,
                learning_rate=LEARNING_RATE[size],
            )
            starts[size] = (start, problems)
            results["gradient_gap"][size] = gradient_gap(size, start=start, problems=problems)
        for size, precision, pairs, steps in PLAN:
            start, problems = starts[size]
            row = compare(size, precision, pairs, steps, start=start, problems=problems)
            results["rows"].append(row)
            (FOLDER / "results.json").write_text(json.dumps(results, indent=1) + "\n")
            (FOLDER / "README.md").write_text(render(results))


if __name__ == "__main__":
    main()
