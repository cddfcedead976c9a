"""Grade completions, and sum the grades up: a changed reward or verifier generates nothing."""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads, reads_params, writes


@click.group(help=__doc__)
def main() -> None:
    """Choose whose."""


@main.command()
@reads_params
@reads("--completions", "data/completions/grpo.jsonl", "what a checkpoint answered")
@writes("--graded", "data/graded/grpo.jsonl", "every completion with its grade")
@writes("--rates", "data/graded/grpo.json", "every rate, also by level, subject and tag")
@writes("--metrics", "reports/metrics/evaluate/grpo.json", "the headline, with standard errors")
@writes("--provenance", "reports/provenance/grade/grpo.json", "settings, versions, hashes")
def checkpoint(
    params_file: Path,
    completions: Path,
    graded: Path,
    rates: Path,
    metrics: Path,
    provenance: Path,
) -> None:
    """Grade what `evaluate` wrote (the stage of the DAG).

    Params: reward, evaluate (max_new_tokens).
    """
    params = load_params(params_file)
    from lib.grading.grade import grade

    click.echo(
        grade(
            params,
            completions,
            graded=graded,
            rates=rates,
            metrics=metrics,
            provenance=provenance,
        )
    )


@main.command()
@click.argument("source", type=click.Path(path_type=Path, dir_okay=False))
@writes("--out", "data/scratch/graded.jsonl", "the same rows, each with its grade and reason")
@click.option(
    "--references",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="JSONL with references and problems, matched by id.",
)
@click.option("--prompt-format", default="", help="Read answers between the marks of this format.")
@click.option("--math-verify", is_flag=True, help="Run math-verify beside our verifier.")
def file(
    source: Path, out: Path, references: Path | None, prompt_format: str, math_verify: bool
) -> None:
    """Grade a JSONL file with completions and references, whoever wrote it (make grade)."""
    from lib.core.errors import UserError
    from lib.grading.external import grade_file
    from lib.prompts import PROMPT_FORMATS

    if not source.is_file():
        raise UserError(
            f"COMPLETIONS: no file `{source}`; expected JSONL with completions and references: "
            "`make grade COMPLETIONS=answers.jsonl`"
        )
    if prompt_format and prompt_format not in PROMPT_FORMATS:
        known = ", ".join(PROMPT_FORMATS)
        raise UserError(f"--prompt-format: no `{prompt_format}`; there are {known}")
    summary = grade_file(
        source,
        out,
        references=references,
        prompt_format=PROMPT_FORMATS.get(prompt_format),
        stack="math_verify" if math_verify else "",
    )
    click.echo("\n".join(summary))


if __name__ == "__main__":
    main()
