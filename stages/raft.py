"""Train on right completions of the policy's own: RAFT (arXiv:2304.06767).

Params: seed, torch_threads, model, prompt, validation, sft, raft.
"""

from pathlib import Path

import click

from lib.cli import reads, reads_params, writes
from lib.params import load_params

SECTIONS = {"seed", "torch_threads", "model", "prompt", "validation", "sft", "raft"}


@click.command(help=__doc__)
@reads_params
@reads("--right", "data/pairs/right/sft.jsonl", "the completions that `best_of_n` kept")
@reads("--validation", "data/problems/validation", "problems to validate on while training")
@reads("--base", "data/models/base", "the weights below an adapter")
@reads("--init", "data/models/sft", "the checkpoint to start from")
@writes("--model", "data/models/raft", "the trained checkpoint")
@writes("--metrics", "reports/metrics/raft.json", "the last point of the curve")
@writes("--curve", "reports/curves/raft.csv", "loss and accuracy over steps")
@writes("--validation-curve", "reports/curves/raft_validation.csv", "validation over steps")
@writes("--provenance", "reports/provenance/raft.json", "settings, versions, hashes")
def main(params_file: Path, validation: Path, base: Path, init: Path, **paths: Path) -> None:
    """Run the stage."""
    params = load_params(params_file)
    from lib.engines.unsloth import import_first

    import_first(params.model.backend, generates=False)
    from lib.engines.runtime import configure
    from lib.trainers.sft import raft_setup
    from lib.training.run import Outputs, run_phase
    from lib.training.setup import asked_with
    from lib.training.validation import read_validator

    configure(seed=params.seed, threads=params.torch_threads)
    read = {"right": paths.pop("right"), "base": base, "init": init}
    run_phase(
        lambda scratch: raft_setup(params, **read, scratch=scratch).trainer,
        stage="raft",
        section=params.raft.as_sft(params.sft),
        init=init,
        outputs=Outputs(**paths),
        settings=params.model_dump(include=SECTIONS),
        inputs={**read, "validation": validation},
        validator=read_validator(
            params, validation, init=init, base=base, **asked_with(params, base)
        ),
    )


if __name__ == "__main__":
    main()
