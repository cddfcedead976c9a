"""Ask one checkpoint in another prompt format, the one that the metrics file is called after.

Params: seed, torch_threads, model, prompt, reward, evaluate, sensitivity (checkpoint).
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
@reads("--checkpoint", "data/models/base", "the checkpoint to measure")
@writes("--completions", "data/completions/formats/xml.jsonl", "every completion with its grade")
@writes("--metrics", "reports/metrics/evaluate/formats/xml.json", "rates with standard errors")
@writes("--provenance", "reports/provenance/evaluate/formats/xml.json", "settings, hashes")
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
        other_format=written["metrics"].stem,
    )
    write_metrics(written["metrics"], measured.summary)
    used = params.model_dump(include=SECTIONS, exclude={"evaluate": {"checkpoints"}})
    paths = {"problems": problems, "base": base, "checkpoint": checkpoint}
    write_provenance(written["provenance"], settings=used, inputs=paths, **measured.facts)
    click.echo("\n".join(headline(f"{checkpoint.name}/{completions.stem}", measured.summary)))


if __name__ == "__main__":
    main()
