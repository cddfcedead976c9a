"""Reinforce the SFT checkpoint with verifiable rewards: GRPO (arXiv:2402.03300).

Params: seed, torch_threads, model, prompt, validation, rollout, reward, optimizer, grpo.
"""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads, reads_code, reads_params, writes

# Not sft or evaluate: a change there re-runs this stage only if it changes an input.
SECTIONS = {"seed", "torch_threads", "model", "prompt", "validation", "rollout", "reward"}
SECTIONS |= {"optimizer", "grpo"}


@click.command(help=__doc__)
@reads_params
@reads_code("grpo", SECTIONS)
@reads("--problems", "data/problems/grpo.jsonl", "problems with references")
@reads("--validation", "data/problems/validation", "problems to validate on while training")
@reads("--base", "data/models/base", "the weights below an adapter")
@reads("--init", "data/models/sft", "the checkpoint to start from")
@writes("--model", "data/models/grpo", "the GRPO checkpoint")
@writes("--metrics", "reports/metrics/grpo.json", "the last value of each mean in the curve")
@writes("--curve", "reports/curves/grpo.csv", "reward, loss, entropy, length by step")
@writes("--validation-curve", "reports/curves/grpo_validation.csv", "validation by step")
@writes("--rollouts", "data/rollouts/grpo.jsonl", "logged completions of training steps")
@writes(
    "--validation-completions",
    "data/rollouts/grpo_validation.jsonl",
    "completions of the last validation",
)
@writes("--provenance", "reports/provenance/grpo.json", "settings, versions, hashes")
def main(
    params_file: Path, problems: Path, validation: Path, base: Path, init: Path, **outputs: Path
) -> None:
    """Train the initial checkpoint with GRPO; write checkpoint, curves, metrics, rollouts."""
    params = load_params(params_file)
    from lib.models.unsloth import import_first

    # True if completions come from a vLLM in this process, which under Unsloth shares the policy's
    # weights; TRL's trainer never does.
    generates = params.rollout.engine == "vllm" and params.grpo.trainer != "trl"
    # First of all: Unsloth patches transformers and TRL when it is imported, and CUDA's allocator
    # reads its settings once.
    import_first(params.model.backend, generates=generates)
    from lib.inference.external import find_model
    from lib.models.runtime import configure
    from lib.training.grpo import grpo_setup
    from lib.training.phase.run import Outputs, run_phase
    from lib.training.phase.validation import Validator

    configure(seed=params.seed, threads=params.torch_threads)
    inputs = {"problems": problems, "init": init, "base": base}
    teacher = {"teacher": find_model(params.grpo.teacher)} if params.grpo.teacher else {}
    run_phase(
        lambda scratch: grpo_setup(params, **inputs, scratch=scratch).trainer,
        stage="grpo",
        section=params.grpo,
        init=init,
        outputs=Outputs(**outputs),
        settings=params.model_dump(include=SECTIONS),
        inputs={**inputs, "validation": validation, **teacher},
        # Step 0 of validation is the initial checkpoint, before any update.
        validator=Validator(params, validation, init=init, base=base),
    )


if __name__ == "__main__":
    main()
