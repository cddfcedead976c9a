"""Measure how often a checkpoint solves each GRPO problem, for `prepare.grpo.difficulty`.

Outside the DAG: what it writes under data/raw is an input. Sampling is that of `rollout`.
"""

from pathlib import Path

import click

from lib.cli import reads, reads_params, writes
from lib.params import load_params


@click.command(help=__doc__)
@reads_params
@reads("--problems", "data/problems/grpo.jsonl", "the problems to rate")
@reads("--base", "data/models/base", "the weights below an adapter")
@reads("--checkpoint", "data/models/sft", "the checkpoint that answers")
@writes("--rates", "data/raw/difficulty.jsonl", "pass rates by content hash")
@click.option("--num-completions", type=click.IntRange(1), default=8, help="Per problem; 8.")
def main(
    params_file: Path,
    problems: Path,
    base: Path,
    checkpoint: Path,
    rates: Path,
    num_completions: int,
) -> None:
    """Write the pass rates."""
    params = load_params(params_file)
    from lib.artifacts.problems import read_problems
    from lib.engines.runtime import configure
    from lib.evaluation.pairs import sample_checkpoint
    from lib.problems.difficulty import PassRate, write_pass_rates

    configure(seed=params.seed, threads=params.torch_threads)
    groups = sample_checkpoint(
        checkpoint,
        base=base,
        problems=list(read_problems(problems)),
        model=params.model,
        prompt=params.prompt,
        rollout=params.rollout,
        num_completions=num_completions,
        engine=params.evaluate.engine,
        batch_size=params.evaluate.batch_size,
        seed=params.seed,
    )
    measured = {
        group.problem.id: PassRate(group.num_right_answers, group.num_completions)
        for group in groups
    }
    write_pass_rates(rates, measured)
    mean = sum(rate.value for rate in measured.values()) / max(len(measured), 1)
    click.echo(f"difficulty problems={len(measured)} mean_pass_rate={mean:.3f} file={rates}")


if __name__ == "__main__":
    main()
