"""Grade completions and summarise the grades; another reward or verifier generates nothing anew."""

from pathlib import Path

import click

from lib.core.errors import UserError
from lib.params import load_params
from lib.prompts import PROMPT_FORMATS
from stages.options import reads, reads_params, writes


@click.group(help=__doc__)
def main() -> None:
    """Grade completions."""


@main.command()
@reads_params
@reads("--completions", "data/completions/grpo.jsonl", "a checkpoint's completions")
@writes("--graded", "data/graded/grpo.jsonl", "every completion with its grade")
@writes("--rates", "data/graded/grpo.json", "every rate, also by level, subject and tag")
@writes(
    "--metrics", "reports/metrics/evaluate/grpo.json", "the headline rates, with standard errors"
)
@writes("--provenance", "reports/provenance/grade/grpo.json", "settings, versions, hashes")
def checkpoint(params_file: Path, completions: Path, **outputs: Path) -> None:
    """Grade the output of `evaluate` (the DVC stage).

    Params: reward.
    """
    params = load_params(params_file)
    # Imported here, so that --help is quick. It must not import torch: grading again after a change
    # of reward should start at once.
    from lib.grading.grade import grade

    click.echo(grade(params, completions, **outputs))


@main.command()
@click.argument("source", type=click.Path(path_type=Path, dir_okay=False))
@writes("--out", "data/scratch/graded.jsonl", "the same rows, each with its grade and reason")
@click.option(
    "--references",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="JSONL with references and problems, matched by id, or by order where neither has ids.",
)
@click.option("--prompt-format", default="", help="Extract answers from this format's tags.")
@click.option("--math-verify", is_flag=True, help="Also run math-verify, for comparison.")
def file(
    source: Path, out: Path, references: Path | None, prompt_format: str, math_verify: bool
) -> None:
    """Grade a JSONL file of completions and references from any source (make grade)."""
    from lib.grading.external import grade_external

    # Checked here and not by click (`exists=True`): without COMPLETIONS, `make grade` passes '',
    # and the error should name the variable.
    if not source.is_file():
        fault = "is not set" if source == Path() else f"no file `{source}`"
        raise UserError(
            f"COMPLETIONS: {fault}; expected JSONL with completions and references: "
            "`make grade COMPLETIONS=answers.jsonl`"
        )
    if references and references.resolve() == out.resolve():
        raise UserError(f"OUT: {out} is the file of REFERENCES; name another")
    if prompt_format and prompt_format not in PROMPT_FORMATS:
        known = ", ".join(PROMPT_FORMATS)
        raise UserError(f"--prompt-format: unknown `{prompt_format}`; known: {known}")
    summary = grade_external(
        source,
        out,
        references=references,
        # None without --prompt-format: answers are read from \boxed{} or from the text, and the
        # format is not judged.
        prompt_format=PROMPT_FORMATS.get(prompt_format),
        math_verify=math_verify,
    )
    click.echo("\n".join(summary))


if __name__ == "__main__":
    main()
