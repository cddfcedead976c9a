"""Grade completions and summarise the grades; another reward or verifier generates nothing anew.

Params: reward.
"""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads, reads_code, reads_params, writes


@click.command(help=__doc__)
@reads_params
@reads_code("grade", {"prompt", "reward"})
@reads("--completions", "data/completions/grpo.jsonl", "a checkpoint's completions")
@writes("--graded", "data/graded/grpo.jsonl", "every completion with its grade")
@writes("--rates", "data/graded/grpo.json", "every rate, also by level, subject and tag")
@writes(
    "--metrics", "reports/metrics/evaluate/grpo.json", "the headline rates, with standard errors"
)
@writes("--provenance", "reports/provenance/grade/grpo.json", "settings, versions, hashes")
def main(params_file: Path, completions: Path, **outputs: Path) -> None:
    """Grade the output of `evaluate`."""
    params = load_params(params_file)
    # Imported here, so that --help is quick. It must not import torch: grading again after a change
    # of reward should start at once.
    from lib.grading.grade import grade

    click.echo(grade(params.reward, completions, **outputs))


if __name__ == "__main__":
    main()
