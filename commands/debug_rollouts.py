"""Print completions at GRPO's settings, and a verdict.

CHECKPOINT is a name below data/models or any path, also below data/scratch.
"""

import itertools
from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads, reads_params

NUM_PROBLEMS = 4
"""Problems to sample."""


@click.command(help=__doc__)
@reads_params
@reads("--problems", "data/problems/grpo.jsonl", "the problems to sample")
@reads("--base", "data/models/base", "the weights below an adapter")
@click.argument("checkpoint", default="sft")
@click.option(
    "--n", default=5, type=click.IntRange(min=2), show_default=True, help="Completions per problem."
)
def main(params_file: Path, problems: Path, base: Path, checkpoint: str, n: int) -> None:
    """Print completions, their totals, and a verdict for GRPO."""
    params = load_params(params_file)
    from lib.artifacts.problems import read_problems
    from lib.evaluation.sampling import sample_checkpoint
    from lib.inference.external import find_model
    from lib.models.pretrained import load_tokenizer
    from lib.models.runtime import configure
    from lib.planning.rollouts import diagnose, report_lines, tag_tokens
    from lib.prompts import prompt_format
    from lib.rewards.grading import Grading
    from lib.training.phase.warning_signs import Limits

    configure(seed=params.seed, threads=params.torch_threads)
    rollout, reward, folder = params.rollout, params.reward, find_model(checkpoint)
    used_format = prompt_format(**params.prompt.rendering)
    settings = reward.settings(max_completion_tokens=rollout.max_new_tokens)
    grading = Grading(reward.names, reward.weights, prompt_format=used_format, **settings)
    groups = sample_checkpoint(
        params,
        folder,
        # Only the first problems are read: a large set would take longer than the sampling.
        list(itertools.islice(read_problems(problems), NUM_PROBLEMS)),
        base=base,
        grading=grading,
        num_completions=n,
        # GRPO's engine, so that the samples are those that GRPO would see.
        engine=rollout.engine,
        batch_size=n * NUM_PROBLEMS,
    )
    tokens = tag_tokens(load_tokenizer(folder), used_format)
    # The tags that a completion has to write: those in SFT's target for an answer without
    # reasoning. Others are in the prompt already, or optional, and would always look missing.
    target = used_format.target(solution="", reference="1")
    required_tags = [tag for tag in used_format.marks if tag in target]
    diagnosis = diagnose(
        groups,
        written=required_tags,
        limits=Limits.from_reward(reward, max_new_tokens=rollout.max_new_tokens),
        temperature=rollout.temperature,
    )
    click.echo(f"{folder} at temperature {rollout.temperature:g}, top-p {rollout.top_p:g}\n")
    lines = report_lines(groups, grading=grading, tokens=tokens, diagnosis=diagnosis)
    click.echo("\n".join(lines))
