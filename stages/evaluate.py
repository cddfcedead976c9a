"""Generate one checkpoint's completions of the held-out problems, for `grade`.

Params: seed, torch_threads, model, prompt, evaluate.
"""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads, reads_code, reads_params, writes

# Not reward: after a change of reward or verifier, only `grade` runs again.
SECTIONS = {"seed", "torch_threads", "model", "prompt", "evaluate"}


@click.command(help=__doc__)
@reads_params
@reads_code("evaluate", SECTIONS)
@reads("--problems", "data/problems/benchmarks", "one set of problems per benchmark")
@reads("--base", "data/models/base", "the weights below an adapter")
@reads("--checkpoint", "data/models/grpo", "the checkpoint that answers")
@writes("--completions", "data/completions/grpo.jsonl", "every completion, with its prompt")
@writes("--provenance", "reports/provenance/evaluate/grpo.json", "settings, versions, hashes")
def main(params_file: Path, completions: Path, provenance: Path, **inputs: Path) -> None:
    """Generate the checkpoint's completions of all benchmarks, and write them with provenance."""
    params = load_params(params_file)
    from lib.artifacts import write_provenance
    from lib.evaluation.completions import complete_checkpoint
    from lib.models.runtime import configure, device_name

    configure(seed=params.seed, threads=params.torch_threads)
    # After an interruption it resumes: finished chunks are stored under a hash of all their inputs.
    # Returns the engine, prompt and sampling, for provenance.
    facts = complete_checkpoint(params=params, completions=completions, **inputs)
    used = params.model_dump(include=SECTIONS, exclude={"evaluate": {"checkpoints"}})
    # Recorded, since another device rounds differently.
    device = device_name()
    write_provenance(provenance, settings=used, inputs=inputs, device=device, **facts)
    click.echo(f"evaluate checkpoint={inputs['checkpoint'].name} completions={completions}")


if __name__ == "__main__":
    main()
