"""Compare the logs of two or more models, also of other tools.

Logs are files or folders of lm-evaluation-harness, inspect_ai, verifiers, lighteval or TRL,
OpenAI's batches, vLLM's outputs or graded rows. FIRST is compared with each of OTHERS; exits with 1
if one of these is worse beyond noise.
"""

import json
from itertools import groupby
from pathlib import Path

import click

LOG = click.Path(path_type=Path, exists=True)


@click.command(help=__doc__)
@click.argument("first", type=LOG)
@click.argument("others", nargs=-1, required=True, type=LOG)
@click.option(
    "--by",
    type=click.Choice(["id", "text", "order"]),
    help="Pair rows by this; default: by id where equal ids have equal problems, else by text.",
)
@click.option("--grade", is_flag=True, help="Judge the answers by the verifier.")
@click.option(
    "--references",
    type=LOG,
    help="JSONL with id, reference and problem, for logs without them; judges the answers.",
)
@click.option("--md", is_flag=True, help="Print Markdown.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def main(
    context: click.Context,
    first: Path,
    others: tuple[Path, ...],
    by: str | None,
    grade: bool,
    references: Path | None,
    md: bool,
    as_json: bool,
) -> None:
    """Print a table for each pair of logs."""
    from lib.grading.logs import LoggedAnswer, mean_scores, pairing, read_log, regrade
    from lib.report.log_comparison import LogComparison, adjusted, compare_scores, comparison_table
    from lib.report.text import markdown_inline, markdown_table, table_lines

    _, known = read_log(references) if references else ("", [])
    keyed = {key: row for row in known for key in (row.id, row.problem) if key}

    def say(text: str) -> None:
        click.echo(markdown_inline(text) if md else text, err=as_json)

    def judged(path: Path) -> tuple[str, list[LoggedAnswer]]:
        tool, answers = read_log(path)
        if grade or references:
            answers, disagreements = regrade(answers, keyed)
            say(f"{path}: the verifier disagrees with {len(disagreements)} scores")
            for each in disagreements[:3]:
                text = f"{each.completion[-60:]!r}, reference {each.reference!r}"
                say(f"  {each.score:g} for {text}")
        if num_missing := sum(answer.score is None for answer in answers):
            say(f"{path}: {num_missing} of {len(answers)} answers have no score")
        return f"{path} ({tool})", answers

    name, before = judged(first)
    pairs: list[LogComparison] = []
    for path in others:
        other, after = judged(path)
        way = by or pairing(before, after)
        title = f"{name} → {other}, paired by {way}"
        pairs += compare_scores(mean_scores(before, way), mean_scores(after, way), title)
    comparisons = adjusted(pairs)
    if as_json:
        content = [each.as_json() for each in comparisons]
        click.echo(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        for title, part in groupby(comparisons, lambda each: each.logs):
            table = comparison_table(title, part)
            lines = [markdown_inline(title), "", markdown_table(table)]
            click.echo("\n".join(lines if md else table_lines(table)))
    context.exit(any(each.verdict == "worse" for each in comparisons))
