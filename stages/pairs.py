"""Mine preference pairs from rollouts: a right against a wrong completion of one problem.

Params: seed, torch_threads, model, prompt, rollout, dpo.pairs.
"""

import dataclasses
from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads, reads_code, reads_params, writes

SECTIONS = {"seed", "torch_threads", "model", "prompt", "rollout"}


@click.command(help=__doc__)
@reads_params
@reads_code("pairs", SECTIONS | {"dpo"})
@reads("--problems", "data/problems/grpo.jsonl", "problems with references")
@reads("--base", "data/models/base", "the weights below an adapter")
@reads("--init", "data/models/sft", "the checkpoint to sample")
@writes("--pairs", "data/pairs/sft.jsonl", "pairs as text and as token ids")
@writes("--metrics", "reports/metrics/pairs.json", "numbers of pairs, and of problems without one")
@writes("--provenance", "reports/provenance/pairs.json", "settings, versions, hashes")
def main(
    params_file: Path,
    problems: Path,
    base: Path,
    init: Path,
    pairs: Path,
    metrics: Path,
    provenance: Path,
) -> None:
    """Sample completions of GRPO's problems, and write pairs of a right and a wrong one."""
    params = load_params(params_file)
    from lib.artifacts import write_jsonl, write_metrics, write_provenance
    from lib.artifacts.problems import read_problems
    from lib.evaluation.pairs import preference_pairs, sampling_metrics
    from lib.evaluation.sampling import sample_checkpoint
    from lib.models.runtime import configure

    configure(seed=params.seed, threads=params.torch_threads)
    settings = params.dpo.pairs
    # `num_problems` 0 means all problems: the slice [:None] has no end.
    sampled = list(read_problems(problems))[: settings.num_problems or None]
    groups = sample_checkpoint(
        params,
        init,
        sampled,
        base=base,
        num_completions=settings.num_completions,
        # GRPO's own engine, so that pairs come from GRPO's distribution.
        engine=params.rollout.engine,
        batch_size=settings.batch_size,
    )
    rows = preference_pairs(sampled, groups, at_most=settings.max_per_problem)
    numbers = sampling_metrics(groups, rows)
    # Token ids are stored beside the text: tokenizing again may give other tokens.
    write_jsonl(pairs, map(dataclasses.asdict, rows))
    write_metrics(metrics, numbers)
    # Of `dpo` only `pairs`: the other keys belong to the stage `dpo`.
    used = {**params.model_dump(include=SECTIONS), "dpo": {"pairs": settings.model_dump()}}
    inputs = {"problems": problems, "base": base, "init": init}
    write_provenance(provenance, settings=used, inputs=inputs)
    click.echo(" ".join(["pairs", *(f"{name}={value:g}" for name, value in numbers.items())]))


if __name__ == "__main__":
    main()
