"""Compare the logs of two or more models, also of other tools.

LOGS are files or folders of lm-evaluation-harness, inspect_ai, verifiers, lighteval or TRL,
OpenAI's batches, vLLM's outputs or graded rows. The first is compared with each other one; exits
with 1 if one of these is worse beyond noise.
"""

import json
from pathlib import Path

import click


@click.command(help=__doc__)
@click.argument(
    "logs", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True), metavar="LOGS..."
)
@click.option(
    "--by",
    type=click.Choice(["id", "text", "order"]),
    help="Pair rows by this; default: by id where equal ids have equal problems, else by text.",
)
@click.option("--grade", is_flag=True, help="Judge the answers by the verifier.")
@click.option(
    "--references",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="JSONL with id, reference and problem, for logs without them; judges the answers.",
)
@click.option("--md", is_flag=True, help="Print Markdown.")
@click.option("--json", "as_json_text", is_flag=True, help="Print JSON.")
@click.pass_context
def main(
    context: click.Context,
    logs: tuple[Path, ...],
    by: str | None,
    grade: bool,
    references: Path | None,
    md: bool,
    as_json_text: bool,
) -> None:
    """Print a table for each pair of logs."""
    from lib.grading import log_comparison
    from lib.grading.logs import read_log
    from lib.report.text import markdown_inline, markdown_table, table_lines

    if len(logs) < 2:
        raise click.UsageError("expected two logs or more")
    known = {}
    if references:
        _, rows = read_log(references)
        known = {
            key: {"reference": row.reference, "problem": row.problem}
            for row in rows
            for key in (row.id, row.problem)
            if key
        }
    sides, notes = [], []
    for path in logs:
        tool, answers = read_log(path)
        if grade or references:
            answers, others = log_comparison.regrade(answers, known)
            notes.append(f"{path}: the verifier disagrees with the tool on {len(others)} answers")
            notes += [
                f"  {each.score:g} for {each.completion[-60:]!r}, reference {each.reference!r}"
                for each in others[:3]
            ]
        if num_missing := sum(answer.score is None for answer in answers):
            notes.append(f"{path}: {num_missing} of {len(answers)} answers have no score")
        sides.append((path, tool, answers))
    (first, first_tool, before), *others_sides = sides
    titles, pairs = [], []
    for path, tool, after in others_sides:
        way = by or log_comparison.pairing(before, after)
        title = f"{first} ({first_tool or 'rows'}) → {path} ({tool or 'rows'}), paired by {way}"
        for each in log_comparison.compare_logs(before, after, way):
            titles.append(title)
            pairs.append(each)
    comparisons = log_comparison.adjusted(pairs)
    if as_json_text:
        content = [
            {"logs": title, **log_comparison.as_json(each)}
            for title, each in zip(titles, comparisons, strict=True)
        ]
        click.echo(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        for title in dict.fromkeys(titles):
            part = [x for each, x in zip(titles, comparisons, strict=True) if each == title]
            table = log_comparison.comparison_table(title, part)
            lines = (
                [markdown_inline(title), "", markdown_table(table)] if md else table_lines(table)
            )
            click.echo("\n".join(lines))
        for note in notes:
            click.echo(markdown_inline(note) if md else note)
    context.exit(any(each.verdict == "worse" for each in comparisons))
