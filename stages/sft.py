"""Teach the base model the format and what working it can from worked solutions.

Params: seed, torch_threads, model, prompt, sft.
"""

from pathlib import Path

import click

from lib.cli import reads, reads_params, writes
from lib.params import load_params


@click.command(help=__doc__)
@reads_params
@reads("--problems", "data/problems/sft.jsonl", "problems with worked solutions")
@reads("--base", "data/models/base", "the untrained checkpoint")
@writes("--model", "data/models/sft", "the fine-tuned checkpoint")
@writes("--metrics", "reports/metrics/sft.json", "the last point of the curve")
@writes("--curve", "reports/curves/sft.csv", "loss and accuracy over steps")
@writes("--provenance", "reports/provenance/sft.json", "settings, versions, hashes")
def main(params_file: Path, problems: Path, base: Path, **outputs: Path) -> None:
    """Run the stage."""
    params = load_params(params_file)
    from lib.engines.unsloth import import_first

    import_first(params.model.backend, generates=False)
    from lib.engines.runtime import configure
    from lib.problems.schema import read_problems
    from lib.prompts import prompt_format, saved_system
    from lib.trainers.run import Outputs, run_phase
    from lib.trainers.sft import build_sft

    configure(seed=params.seed, threads=params.torch_threads)
    run_phase(
        lambda scratch: build_sft(
            list(read_problems(problems)),
            base=base,
            prompt_format=prompt_format(**params.prompt.rendering()),
            system=saved_system(base),
            sft=params.sft,
            model=params.model,
            seed=params.seed,
            scratch=scratch,
        ),
        stage="sft",
        section=params.sft,
        init=base,
        outputs=Outputs(**outputs),
        settings=params.model_dump(include={"seed", "torch_threads", "model", "prompt", "sft"}),
        inputs={"problems": problems, "base": base},
    )


if __name__ == "__main__":
    main()
