"""Keep the right completions of rollouts, to train on: best-of-n sampling.

Params: seed, torch_threads, model, prompt, rollout, dpo.pairs, raft.max_per_problem.
"""

import dataclasses
from pathlib import Path

import click

from lib.cli import reads, reads_params, writes
from lib.params import load_params

SECTIONS = {"seed", "torch_threads", "model", "prompt", "rollout"}


@click.command(help=__doc__)
@reads_params
@reads("--problems", "data/problems/grpo.jsonl", "problems with references")
@reads("--base", "data/models/base", "the weights below an adapter")
@reads("--init", "data/models/sft", "the checkpoint that is sampled")
@writes("--right", "data/pairs/right/sft.jsonl", "right completions as text and as token ids")
@writes("--metrics", "reports/metrics/best_of_n.json", "how many, and of how many problems")
@writes("--provenance", "reports/provenance/best_of_n.json", "settings, versions, hashes")
def main(
    params_file: Path, problems: Path, base: Path, init: Path, right: Path, **written: Path
) -> None:
    """Run the stage."""
    params = load_params(params_file)
    from lib.artifacts import write_jsonl, write_metrics, write_provenance
    from lib.engines.runtime import configure
    from lib.evaluation.pairs import best_of_n, sample_checkpoint, sampling_metrics

    configure(seed=params.seed, threads=params.torch_threads)
    settings, at_most = params.dpo.pairs, params.raft.max_per_problem
    groups = sample_checkpoint(
        init,
        base=base,
        problems=problems,
        model=params.model,
        prompt=params.prompt,
        rollout=params.rollout,
        settings=settings,
        seed=params.seed,
    )
    rows = best_of_n(groups, at_most=at_most)
    metrics = sampling_metrics(groups, rows)
    write_jsonl(right, map(dataclasses.asdict, rows))
    write_metrics(written["metrics"], metrics)
    used = {"dpo": {"pairs": settings.model_dump()}, "raft": {"max_per_problem": at_most}}
    used |= params.model_dump(include=SECTIONS)
    inputs = {"problems": problems, "base": base, "init": init}
    write_provenance(written["provenance"], settings=used, inputs=inputs)
    click.echo(" ".join(["best_of_n", *(f"{name}={value:g}" for name, value in metrics.items())]))


if __name__ == "__main__":
    main()
