"""Reinforce the SFT checkpoint with verifiable rewards: GRPO (arXiv:2402.03300).

Params: seed, torch_threads, model, prompt, rollout, reward, grpo.
"""

from pathlib import Path

import click

from lib.cli import reads, reads_params, writes
from lib.params import load_params


@click.command(help=__doc__)
@reads_params
@reads("--problems", "data/problems/grpo.jsonl", "problems with references")
@reads("--base", "data/models/base", "the weights below an adapter")
@reads("--init", "data/models/sft", "the checkpoint to start from")
@writes("--model", "data/models/grpo", "the reinforced checkpoint")
@writes("--metrics", "reports/metrics/grpo.json", "the last point of the curve")
@writes("--curve", "reports/curves/grpo.csv", "reward, loss, entropy, length over steps")
@writes("--provenance", "reports/provenance/grpo.json", "settings, versions, hashes")
def main(params_file: Path, problems: Path, base: Path, init: Path, **outputs: Path) -> None:
    """Run the stage."""
    params = load_params(params_file)
    from lib.engines.unsloth import import_first

    import_first(params.model.backend, generates=True)
    from lib.engines.runtime import configure
    from lib.problems.schema import read_problems
    from lib.prompts import prompt_format, saved_system
    from lib.trainers.grpo import build_grpo
    from lib.trainers.run import Outputs, run_phase
    from lib.verifier import counters

    configure(seed=params.seed, threads=params.torch_threads)
    sections = ("grpo", "rollout", "reward", "model")
    run_phase(
        lambda scratch: build_grpo(
            list(read_problems(problems)),
            init=init,
            base=base,
            prompt_format=prompt_format(**params.prompt.rendering()),
            system=saved_system(base),
            scratch=scratch,
            seed=params.seed,
            **{name: getattr(params, name) for name in sections},
        ),
        stage="grpo",
        section=params.grpo,
        init=init,
        outputs=Outputs(**outputs),
        settings=params.model_dump(include={*sections, "seed", "torch_threads", "prompt"}),
        inputs={"problems": problems, "base": base, "init": init},
        facts=lambda: {"verifier": counters()},
    )


if __name__ == "__main__":
    main()
