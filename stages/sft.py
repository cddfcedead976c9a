"""Teach the base model the format and the reasoning of worked solutions.

Params: seed, torch_threads, model, prompt, validation, optimizer, sft.
"""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads, reads_code, reads_params, writes

# Not grpo, rollout or reward: a change there must not train SFT again.
SECTIONS = {"seed", "torch_threads", "model", "prompt", "validation", "optimizer", "sft"}


@click.command(help=__doc__)
@reads_params
@reads_code("sft", SECTIONS)
@reads("--problems", "data/problems/sft.jsonl", "problems with worked solutions")
@reads("--validation", "data/problems/validation", "problems to validate on while training")
@reads("--base", "data/models/base", "the untrained checkpoint")
@writes("--model", "data/models/sft", "the fine-tuned checkpoint")
@writes("--metrics", "reports/metrics/sft.json", "the last value of each mean in the curve")
@writes("--curve", "reports/curves/sft.csv", "loss and accuracy by step")
@writes("--validation-curve", "reports/curves/sft_validation.csv", "validation by step")
@writes(
    "--validation-completions",
    "data/rollouts/sft_validation.jsonl",
    "completions of the last validation",
)
@writes("--provenance", "reports/provenance/sft.json", "settings, versions, hashes")
def main(params_file: Path, problems: Path, validation: Path, base: Path, **outputs: Path) -> None:
    """Train the base model with SFT, or pass a trained adapter on; write checkpoint and curves."""
    params = load_params(params_file)
    from lib.models.unsloth import import_first

    # True if validation generates with vLLM, which under Unsloth shares the policy's weights.
    generates = params.sft.eval_steps > 0 and params.validation.engine == "vllm"
    # First of all: Unsloth patches transformers and TRL when it is imported.
    import_first(params.model.backend, generates=generates)
    from lib.models.runtime import configure
    from lib.training.phase.run import Outputs, run_phase
    from lib.training.phase.validation import Validator
    from lib.training.sft import sft_setup

    configure(seed=params.seed, threads=params.torch_threads)
    adapter = Path(params.sft.adapter) if params.sft.adapter else None
    inputs = {"problems": problems, "base": base, "validation": validation}
    run_phase(
        lambda scratch: sft_setup(params, problems=problems, base=base, scratch=scratch).trainer,
        stage="sft",
        section=params.sft,
        init=base,
        outputs=Outputs(**outputs),
        settings=params.model_dump(include=SECTIONS),
        # The adapter is hashed as an input: another adapter is another run.
        inputs={**inputs, "adapter": adapter} if adapter else inputs,
        adapter=adapter,
        validator=Validator(params, validation, init=base, base=base),
    )


if __name__ == "__main__":
    main()
