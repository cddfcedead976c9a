"""Measure how often a checkpoint solves each GRPO problem.

CHECKPOINT is a name below data/models or a path. `prepare.grpo.difficulty` reads the rates.
"""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads, reads_params, writes


@click.command(help=__doc__)
@reads_params
@reads("--problems", "data/problems/grpo.jsonl", "the problems to rate")
@reads("--base", "data/models/base", "the weights below an adapter")
@click.argument("checkpoint", default="sft")
@writes("--rates", "data/raw/difficulty.jsonl", "pass rates by content hash")
@click.option(
    "-k", "num_completions", type=click.IntRange(1), default=8, help="Per problem; default: 8."
)
def main(
    params_file: Path,
    problems: Path,
    base: Path,
    checkpoint: str,
    rates: Path,
    num_completions: int,
) -> None:
    """Write the pass rate of each problem."""
    params = load_params(params_file)
    from lib.artifacts.problems import read_problems
    from lib.evaluation.sampling import sample_checkpoint
    from lib.inference.external import find_model
    from lib.models.runtime import configure
    from lib.problems.selection import PassRate, write_pass_rates

    configure(seed=params.seed, threads=params.torch_threads)
    rated = list(read_problems(problems))
    groups = sample_checkpoint(
        params,
        find_model(checkpoint),
        rated,
        base=base,
        num_completions=num_completions,
        # Evaluation's engine and batch size: sampling all GRPO problems is as much work.
        engine=params.evaluate.engine,
        batch_size=params.evaluate.batch_size,
    )
    measured = {
        problem.id: PassRate(sum(each.answer_ok for each in group), len(group))
        for problem, group in zip(rated, groups, strict=True)
    }
    write_pass_rates(rates, measured)
    mean = sum(rate.value for rate in measured.values()) / max(len(measured), 1)
    click.echo(f"difficulty problems={len(measured)} mean_pass_rate={mean:.3f} file={rates}")
