"""Prefer right completions to wrong ones: DPO (arXiv:2305.18290) on mined pairs.

Params: seed, torch_threads, model, dpo.
"""

from pathlib import Path

import click

from lib.cli import reads, reads_params, writes
from lib.params import load_params

SECTIONS = {"seed", "torch_threads", "model", "dpo"}


@click.command(help=__doc__)
@reads_params
@reads("--pairs", "data/pairs/sft.jsonl", "the pairs that `pairs` mined")
@reads("--base", "data/models/base", "the weights below an adapter")
@reads("--init", "data/models/sft", "the checkpoint to start from, which is the reference too")
@writes("--model", "data/models/dpo", "the preferring checkpoint")
@writes("--metrics", "reports/metrics/dpo.json", "the last point of the curve")
@writes("--curve", "reports/curves/dpo.csv", "loss, margin, share of pairs ranked right over steps")
@writes("--provenance", "reports/provenance/dpo.json", "settings, versions, hashes")
def main(params_file: Path, pairs: Path, base: Path, init: Path, **outputs: Path) -> None:
    """Run the stage."""
    params = load_params(params_file)
    from lib.artifacts import read_jsonl
    from lib.engines.runtime import configure
    from lib.trainers.dpo import build_dpo
    from lib.trainers.run import Outputs, run_phase

    configure(seed=params.seed, threads=params.torch_threads)
    run_phase(
        lambda scratch: build_dpo(
            read_jsonl(pairs),
            init=init,
            base=base,
            dpo=params.dpo,
            model=params.model,
            seed=params.seed,
            scratch=scratch,
        ),
        stage="dpo",
        section=params.dpo,
        init=init,
        outputs=Outputs(**outputs),
        settings=params.model_dump(include=SECTIONS),
        inputs={"pairs": pairs, "base": base, "init": init},
    )


if __name__ == "__main__":
    main()
