"""Look at what a checkpoint writes at GRPO's sampling settings, and what that means for GRPO.

Any checkpoint: a name below data/models, or a path, those under data/scratch included. Not a stage
of the DAG; it writes nothing. Params: seed, torch_threads, model, prompt, rollout, reward.
"""

import contextlib
from pathlib import Path

import click

from lib.cli import reads, reads_params
from lib.errors import UserError
from lib.params import load_params

MODELS = Path("data/models")


@click.command(help=__doc__)
@reads_params
@reads("--problems", "data/problems/grpo.jsonl", "the problems to ask")
@reads("--base", "data/models/base", "the weights below an adapter")
@click.option("--checkpoint", default="sft", show_default=True, help="Which checkpoint.")
@click.option("--n", default=5, type=click.IntRange(min=2), show_default=True, help="Completions.")
@click.option("--num-problems", default=4, type=click.IntRange(min=1), show_default=True)
def main(
    params_file: Path, problems: Path, base: Path, checkpoint: str, n: int, num_problems: int
) -> None:
    """Print completions, sums and a verdict."""
    params, folder = load_params(params_file), find_checkpoint(checkpoint)
    import itertools

    from lib.artifacts.problems import read_problems
    from lib.engines.base import Sampling
    from lib.engines.open import open_engine
    from lib.engines.runtime import configure
    from lib.grading.grade import Grading
    from lib.grading.rewards import rewards_of
    from lib.planning.diagnostics import draw_groups, report_lines, tag_tokens, verdicts
    from lib.prompts import format_settings, prompt_format, saved_system
    from lib.training.warning_signs import Limits

    configure(seed=params.seed, threads=params.torch_threads)
    rollout, reward = params.rollout, params.reward
    written_in, longest = prompt_format(**format_settings(params.prompt)), rollout.max_new_tokens
    engine = open_engine(
        rollout.engine, folder, base=base, **params.model.loading, batch_size=n * num_problems
    )
    with contextlib.closing(engine):
        groups = draw_groups(
            engine,
            list(itertools.islice(read_problems(problems), num_problems)),
            system=saved_system(base),
            sampling=Sampling(
                **rollout.decoding,
                num_completions=n,
                stop_strings=written_in.stop_strings,
                seed=params.seed,
            ),
            grading=Grading(
                prompt_format=written_in,
                rewards=rewards_of(reward, prompt_format=written_in, max_completion_tokens=longest),
                weights=reward.weights,
            ),
        )
        tokens = tag_tokens(engine.tokenizer, written_in)
    tags = [tag for tag in written_in.marks if tag in written_in.target(solution="", reference="1")]
    judged = verdicts(
        groups,
        written=tags,
        limits=Limits.of(reward, max_new_tokens=longest),
        temperature=rollout.temperature,
    )
    click.echo(f"{folder} at temperature {rollout.temperature:g}, top-p {rollout.top_p:g}\n")
    click.echo("\n".join(report_lines(groups, tokens=tokens, judged=judged)))


def find_checkpoint(name: str) -> Path:
    """A folder of that path, or of that name below data/models.

    Raises:
        UserError: neither is there; lists what is.
    """
    for folder in (Path(name), MODELS / name):
        if (folder / "tokenizer_config.json").is_file():
            return folder
    there = sorted(path.parent.name for path in MODELS.glob("*/tokenizer_config.json"))
    raise UserError(
        f"no checkpoint {name}, nor {MODELS / name}; below {MODELS} there are "
        f"{', '.join(there) or 'none: run `dvc repro`'}"
    )


if __name__ == "__main__":
    main()
