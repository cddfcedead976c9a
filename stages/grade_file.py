"""Grade stored completions: a JSONL file with completions and references, whoever wrote it.

Params: none.
"""

from pathlib import Path

import click

from lib.cli import reads, writes
from lib.errors import UserError


@click.command(help=__doc__)
@reads("--completions", "data/completions/grpo.jsonl", "rows with a completion and a reference")
@writes("--out", "data/scratch/graded.jsonl", "the same rows, each with its grade and reason")
@click.option("--prompt-format", default="", help="Read answers between the marks of this format.")
@click.option("--math-verify", is_flag=True, help="Run math-verify beside our verifier.")
def main(completions: Path, out: Path, prompt_format: str, math_verify: bool) -> None:
    """Grade the file."""
    from lib.evaluation.grade_file import grade_file, math_verify_grader
    from lib.prompts import PROMPT_FORMATS
    from lib.prompts import prompt_format as format_called

    if prompt_format and prompt_format not in PROMPT_FORMATS:
        known = ", ".join(PROMPT_FORMATS)
        raise UserError(f"--prompt-format: no `{prompt_format}`; there are {known}")
    summary = grade_file(
        completions,
        out,
        prompt_format=format_called(prompt_format) if prompt_format else None,
        graders={"math_verify": math_verify_grader()} if math_verify else None,
    )
    click.echo("\n".join(summary.lines()))


if __name__ == "__main__":
    main()
