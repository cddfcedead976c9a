"""Write the exported checkpoint as one complete model with its card, and verify it.

Params: all, since the export includes them beside its model card.
"""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads, reads_code, reads_params, writes


@click.command(help=__doc__)
@reads_params
@reads_code("export", None)
@reads("--problems", "data/problems/benchmarks", "prompts to verify on")
@reads("--base", "data/models/base", "the weights below an adapter")
@reads("--checkpoint", "data/models/grpo", "the checkpoint to export")
@reads("--measured", "reports/metrics/evaluate/grpo.json", "its metrics, for the model card")
@writes("--export", "data/models/export", "the exported model")
@writes("--metrics", "reports/metrics/export.json", "the verification's numbers")
@writes("--provenance", "reports/provenance/export.json", "settings, versions, hashes")
def main(
    params_file: Path,
    measured: Path,
    export: Path,
    metrics: Path,
    provenance: Path,
    **inputs: Path,
) -> None:
    """Write and verify the exported model; write the verification's numbers and provenance."""
    params = load_params(params_file)
    from lib.artifacts import hash_path, write_metrics, write_provenance
    from lib.export.model import publish
    from lib.models.runtime import configure

    configure(seed=params.seed, threads=params.torch_threads)
    verified = publish(to=export, params=params, measured=measured, **inputs)
    # Errors: mean differences in log-prob from the checkpoint, by comparison. `./reckon push`
    # compares the hash with the folder: only the verified bytes are uploaded.
    facts = {"errors": verified.errors, "export": hash_path(export)}
    write_metrics(metrics, verified.numbers)
    # Tuples as lists: `./reckon push` compares these params with the ones it reads back from JSON.
    used = params.model_dump(mode="json")
    write_provenance(provenance, settings=used, inputs=inputs, **facts)
    click.echo(f"export verified={verified.numbers['num_prompts']} model={export}")


if __name__ == "__main__":
    main()
