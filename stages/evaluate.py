"""Let one checkpoint answer the held-out problems, and grade every completion.

Params: seed, torch_threads, model, prompt, reward, evaluate.
"""

from pathlib import Path

import click

from lib.cli import reads, reads_params, writes
from lib.params import load_params

SECTIONS = {"seed", "torch_threads", "model", "prompt", "reward", "evaluate"}


@click.command(help=__doc__)
@reads_params
@reads("--problems", "data/problems/benchmarks", "one set of problems per benchmark")
@reads("--base", "data/models/base", "the weights below an adapter")
@reads("--checkpoint", "data/models/grpo", "the checkpoint to measure")
@writes("--completions", "data/completions/grpo.jsonl", "every completion with its grade")
@writes("--metrics", "reports/metrics/evaluate/grpo.json", "rates with standard errors")
@writes("--provenance", "reports/provenance/evaluate/grpo.json", "settings, versions, hashes")
def main(
    params_file: Path,
    problems: Path,
    base: Path,
    checkpoint: Path,
    completions: Path,
    **written: Path,
) -> None:
    """Run the stage."""
    params = load_params(params_file)
    from lib.artifacts import write_metrics, write_provenance
    from lib.engines.runtime import configure
    from lib.evaluation.checkpoint import measure_checkpoint
    from lib.evaluation.metrics import headline

    configure(seed=params.seed, threads=params.torch_threads)
    measured = measure_checkpoint(
        checkpoint,
        base=base,
        problems=problems,
        completions=completions,
        model=params.model,
        prompt=params.prompt,
        reward=params.reward,
        evaluate=params.evaluate,
        seed=params.seed,
    )
    write_metrics(written["metrics"], measured.summary)
    # Which other checkpoints are measured changes nothing here, and is no param of the stage.
    used = params.model_dump(include=SECTIONS, exclude={"evaluate": {"checkpoints"}})
    inputs = {"problems": problems, "base": base, "checkpoint": checkpoint}
    write_provenance(written["provenance"], settings=used, inputs=inputs, **measured.facts)
    click.echo("\n".join(headline(checkpoint.name, measured.summary)))


if __name__ == "__main__":
    main()
