"""Keep the right completions of rollouts, to train on: best-of-n sampling.

Params: seed, torch_threads, model, prompt, rollout, dpo.pairs, raft.max_per_problem.
"""

import functools
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
    from lib.evaluation.pairs import as_rows, best_of_n, mine_checkpoint

    configure(seed=params.seed, threads=params.torch_threads)
    settings, at_most = params.dpo.pairs, params.raft.max_per_problem
    mined = mine_checkpoint(
        init,
        mine=functools.partial(best_of_n, at_most=at_most),
        base=base,
        problems=problems,
        model=params.model,
        prompt=params.prompt,
        rollout=params.rollout,
        settings=settings,
        seed=params.seed,
    )
    write_jsonl(right, as_rows(mined.completions))
    write_metrics(written["metrics"], mined.metrics())
    used = {"dpo": {"pairs": settings.model_dump()}, "raft": {"max_per_problem": at_most}}
    used |= params.model_dump(include=SECTIONS)
    inputs = {"problems": problems, "base": base, "init": init}
    write_provenance(written["provenance"], settings=used, inputs=inputs)


if __name__ == "__main__":
    main()
