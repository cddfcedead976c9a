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
def main(params_file: Path, num_completions: int, **paths: Path) -> None:
    """Write the pass rates."""
    params = load_params(params_file)
    from lib.artifacts.problems import read_problems
    from lib.engines.base import Sampling
    from lib.engines.open import open_engine
    from lib.engines.runtime import configure
    from lib.evaluation.difficulty import measure_pass_rates
    from lib.problems.difficulty import write_pass_rates
    from lib.prompts import format_settings, prompt_format, saved_system

    configure(seed=params.seed, threads=params.torch_threads)
    prompt = prompt_format(**format_settings(params.prompt))
    engine = open_engine(
        params.evaluate.engine,
        paths["checkpoint"],
        base=paths["base"],
        **params.model.loading,
        batch_size=params.evaluate.batch_size,
        label=f"difficulty {paths['checkpoint'].name}",
    )
    rates = measure_pass_rates(
        engine,
        list(read_problems(paths["problems"])),
        prompt_format=prompt,
        system=saved_system(paths["base"]),
        sampling=Sampling(
            **params.rollout.decoding,
            num_completions=num_completions,
            stop_strings=prompt.stop_strings,
            seed=params.seed,
        ),
    )
    engine.close()
    write_pass_rates(paths["rates"], rates)
    mean = sum(rate.value for rate in rates.values()) / max(len(rates), 1)
    click.echo(f"difficulty problems={len(rates)} mean_pass_rate={mean:.3f} file={paths['rates']}")


if __name__ == "__main__":
    main()
