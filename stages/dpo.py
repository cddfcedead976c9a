"""Prefer right completions to wrong ones: DPO (arXiv:2305.18290) on mined pairs.

Params: seed, torch_threads, model, prompt, validation, dpo.
"""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads, reads_params, writes

SECTIONS = {"seed", "torch_threads", "model", "prompt", "validation", "dpo"}


@click.command(help=__doc__)
@reads_params
@reads("--pairs", "data/pairs/sft.jsonl", "the pairs that `pairs` mined")
@reads("--validation", "data/problems/validation", "problems to validate on while training")
@reads("--base", "data/models/base", "the weights below an adapter")
@reads("--init", "data/models/sft", "the checkpoint to start from, which is the reference too")
@writes("--model", "data/models/dpo", "the preferring checkpoint")
@writes("--metrics", "reports/metrics/dpo.json", "the last point of the curve")
@writes("--curve", "reports/curves/dpo.csv", "loss, margin, share of pairs ranked right over steps")
@writes("--validation-curve", "reports/curves/dpo_validation.csv", "validation over steps")
@writes("--provenance", "reports/provenance/dpo.json", "settings, versions, hashes")
def main(
    params_file: Path,
    pairs: Path,
    validation: Path,
    base: Path,
    init: Path,
    model: Path,
    metrics: Path,
    curve: Path,
    validation_curve: Path,
    provenance: Path,
) -> None:
    """Run the stage."""
    params = load_params(params_file)
    from lib.engines.unsloth import import_first

    import_first("transformers", generates=False)  # whatever trains the other phases
    from lib.engines.runtime import configure
    from lib.training.dpo import dpo_setup
    from lib.training.phase.run import Outputs, run_phase
    from lib.training.phase.validation import Validator

    configure(seed=params.seed, threads=params.torch_threads)
    read = {"pairs": pairs, "base": base, "init": init}
    run_phase(
        lambda scratch: dpo_setup(params, **read, scratch=scratch).trainer,
        stage="dpo",
        section=params.dpo,
        init=init,
        outputs=Outputs(
            model=model,
            metrics=metrics,
            curve=curve,
            validation_curve=validation_curve,
            provenance=provenance,
        ),
        settings=params.model_dump(include=SECTIONS),
        inputs={**read, "validation": validation},
        validator=Validator(params, validation, init=init, base=base),
    )


if __name__ == "__main__":
    main()
