"""Print whether an answer equals a reference, and the rule that decided.

python -m reckon_verifier REFERENCE ANSWER [--problem TEXT]
"""

import click

from reckon_verifier.equivalence import compare, reference_problem
from reckon_verifier.rules import DESCRIPTIONS


@click.command(help=__doc__)
@click.argument("reference")
@click.argument("answer")
@click.option("--problem", default=None, help="Text of the problem, which may settle the answer.")
def main(reference: str, answer: str, problem: str | None) -> None:
    """Print the verdict, the rule that decided, and its description.

    For 72 and 72.0: "equal: number, rational numbers, exactly".
    """
    if fault := reference_problem(reference):
        raise click.ClickException(f"REFERENCE {reference!r} cannot be compared: {fault}")
    verdict = compare(reference=reference, answer=answer, problem=problem)
    description = DESCRIPTIONS[verdict.decided_by]
    click.echo(f"{'equal' if verdict.equal else 'not equal'}: {verdict.decided_by}, {description}")


if __name__ == "__main__":
    main()
