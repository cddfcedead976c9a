"""Prefer right completions to wrong ones: DPO (arXiv:2305.18290) on mined pairs.

Params: seed, torch_threads, model, prompt, validation, optimizer, dpo.
"""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads, reads_code, reads_params, writes

# The params in provenance, as dvc.yaml lists them. Not rollout, reward or grpo: they
# cannot change this stage, except through the pairs and the initial checkpoint.
SECTIONS = {"seed", "torch_threads", "model", "prompt", "validation", "optimizer", "dpo"}


@click.command(help=__doc__)
@reads_params
@reads_code("dpo", SECTIONS)
@reads("--pairs", "data/pairs/sft.jsonl", "the pairs that `pairs` mined")
@reads("--validation", "data/problems/validation", "problems to validate on while training")
@reads("--base", "data/models/base", "the weights below an adapter")
@reads("--init", "data/models/sft", "the initial checkpoint, also the reference policy")
@writes("--model", "data/models/dpo", "the DPO checkpoint")
@writes("--metrics", "reports/metrics/dpo.json", "the last value of each mean in the curve")
@writes("--curve", "reports/curves/dpo.csv", "loss, margin, share of pairs ranked right, by step")
@writes("--validation-curve", "reports/curves/dpo_validation.csv", "validation by step")
@writes("--provenance", "reports/provenance/dpo.json", "settings, versions, hashes")
def main(
    params_file: Path, pairs: Path, validation: Path, base: Path, init: Path, **outputs: Path
) -> None:
    """Train the initial checkpoint with DPO on mined pairs; write checkpoint, curves, metrics."""
    params = load_params(params_file)
    from lib.models.unsloth import import_first

    # Before torch: it sets the options of CUDA's allocator, which are read once. TRL's DPO trainer
    # runs on transformers, even if `model.backend` is unsloth, and generates nothing.
    import_first("transformers", generates=False)
    from lib.models.runtime import configure
    from lib.training.dpo import dpo_setup
    from lib.training.phase.run import Outputs, run_phase
    from lib.training.phase.validation import Validator

    configure(seed=params.seed, threads=params.torch_threads)
    inputs = {"pairs": pairs, "base": base, "init": init}
    run_phase(
        lambda scratch: dpo_setup(params, **inputs, scratch=scratch).trainer,
        stage="dpo",
        section=params.dpo,
        init=init,
        outputs=Outputs(**outputs),
        settings=params.model_dump(include=SECTIONS),
        inputs={**inputs, "validation": validation},
        # Validation starts from `init` too, so that step 0 shows the policy before DPO.
        validator=Validator(params, validation, init=init, base=base),
    )


if __name__ == "__main__":
    main()
