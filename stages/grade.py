"""Grade what `evaluate` wrote, and sum it up: a changed reward or verifier generates nothing.

Params: reward, evaluate (max_new_tokens).
"""

from pathlib import Path

import click

from lib.cli import reads, reads_params, writes
from lib.params import load_params


@click.command(help=__doc__)
@reads_params
@reads("--completions", "data/completions/grpo.jsonl", "what a checkpoint answered")
@writes("--graded", "data/graded/grpo.jsonl", "every completion with its grade")
@writes("--metrics", "reports/metrics/evaluate/grpo.json", "rates with standard errors")
@writes("--provenance", "reports/provenance/grade/grpo.json", "settings, versions, hashes")
def main(
    params_file: Path, completions: Path, graded: Path, metrics: Path, provenance: Path
) -> None:
    """Run the stage."""
    params = load_params(params_file)
    from lib.artifacts import ROOT, hash_code, write_metrics, write_provenance
    from lib.artifacts.completions import read_graded
    from lib.grading.files import grade_file
    from lib.grading.metrics import headline, summarise

    longest = params.evaluate.max_new_tokens
    faults = grade_file(completions, graded, reward=params.reward, max_new_tokens=longest)
    summary = summarise(read_graded(graded))
    write_metrics(metrics, summary)
    write_provenance(
        provenance,
        settings=params.model_dump(include={"reward": True, "evaluate": {"max_new_tokens"}}),
        inputs={"completions": completions},
        verifier={"code": hash_code(ROOT / "lib/verifier"), **faults},
    )
    click.echo("\n".join(headline(completions.stem, summary)))


if __name__ == "__main__":
    main()
