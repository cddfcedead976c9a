"""Grade stored completions of any origin.

FILE is JSONL with completions and, there or in --references, the references.
"""

from pathlib import Path

import click

from lib.core.errors import UserError
from lib.prompts import PROMPT_FORMATS
from stages.options import writes


@click.command(help=__doc__)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@writes("--out", "data/scratch/graded.jsonl", "the same rows, each with its grade and reason")
@click.option(
    "--references",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="JSONL with references and problems, matched by id, or by order where neither has ids.",
)
@click.option(
    "--prompt-format",
    type=click.Choice(list(PROMPT_FORMATS)),
    help="Extract answers from this format's tags.",
)
@click.option("--math-verify", is_flag=True, help="Also run math-verify, for comparison.")
def main(
    file: Path, out: Path, references: Path | None, prompt_format: str | None, math_verify: bool
) -> None:
    """Write every row with its grade, and print the summary."""
    from lib.grading.external import grade_external

    if references and references.resolve() == out.resolve():
        raise UserError(f"--out: {out} is the file of --references; name another")
    summary = grade_external(
        file,
        out,
        references=references,
        # None: answers are read from \boxed{} or from the text, and the format is not judged.
        prompt_format=PROMPT_FORMATS[prompt_format] if prompt_format else None,
        math_verify=math_verify,
    )
    click.echo("\n".join(summary))
