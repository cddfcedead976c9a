"""Accuracy, speed, bounds and laws of the verifier.

python -m bench.verifier measure [FOLDER]
python -m bench.verifier laws [FOLDER] [--seed N] [--limit N] [--kind NAME] [--grader NAME]
python -m bench.verifier rules [FOLDER] [--write]

FOLDER holds grading/pairs.jsonl, written.jsonl, outputs.jsonl and hostile.jsonl, and in
grading/fresh the sets that no rule was written against, and in data the public sets whose
references are edited too; default: RECKON_SHARED.
"""

import json
import os
import platform
from pathlib import Path
from typing import Any

import click

from bench.processes import in_a_process
from bench.verifier.graders import GRADERS
from bench.verifier.laws import KINDS, LAWS, Laws
from bench.verifier.measure import measure
from bench.verifier.references import references, write_between
from bench.verifier.rules import PAGE, earned, write
from bench.verifier.rules import table as rule_table
from reckon_verifier.rules import TABLE

HERE = Path(__file__).parent


def figures_of(results: dict[str, Any]) -> dict[str, Any]:
    """Return a grader's figures by their names in the table."""
    parts = {"speed": results["speed"], **results["sets"], **results.get("hostile", {})}
    parts["counters"] = results.get("counters")
    return {
        f"{title}: {name.replace('_', ' ')}": figure
        for title, measured in parts.items()
        if isinstance(measured, dict)
        for name, figure in measured.items()
        if name not in ("n", "disagreements")
    }


def table(results: dict[str, Any]) -> str:
    """Render the results as Markdown: a row for each of reckon's figures."""
    graders = {name: figures_of(measured) for name, measured in results.items()}
    lines = [f"| | {' | '.join(graders)} |", f"|---|{'---|' * len(graders)}"]
    for name in graders["reckon"]:
        shown = "{:.2%}" if name.endswith(("agreement", "TPR", "TNR")) else "{}"
        cells = [
            shown.format(figures[name]) if name in figures else "not run"
            for figures in graders.values()
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


@click.group(help=__doc__)
def main() -> None:
    """Group the commands."""


@main.command("measure")
@click.argument("folder", default=os.environ.get("RECKON_SHARED", ""))
def compare_graders(folder: str) -> None:
    """Compare the graders on the sets in FOLDER; write results.json and the README's table."""
    sets = Path(folder)
    if not (sets / "grading" / "pairs.jsonl").is_file():
        raise click.UsageError(f"FOLDER={folder}: there is no grading/pairs.jsonl in it")
    # Fresh interpreters: neither grader warms the other's caches.
    results = {name: in_a_process(measure, name, sets) for name in GRADERS}
    click.echo(table(results))
    kept = {"python": platform.python_version(), "graders": results}
    text = json.dumps(kept, indent=1, sort_keys=True) + "\n"
    (HERE / "results.json").write_text(text, encoding="utf-8")
    write_between(HERE / "README.md", "table", table(results))


@main.command("laws")
@click.argument("folder", default=os.environ.get("RECKON_SHARED", ""))
@click.option("--seed", default=0, show_default=True, help="Draws references, strings and edits.")
@click.option("--limit", default=1000, show_default=True, help="Edits of a kind, 0 for all.")
@click.option("--kind", "names", multiple=True, type=click.Choice([*KINDS, *LAWS]))
@click.option("--grader", type=click.Choice(list(GRADERS)), default="reckon", show_default=True)
def try_laws(folder: str, seed: int, limit: int, names: tuple[str, ...], grader: str) -> None:
    """Print trials and violations of each law, without labels; exit 1 if there is a violation."""
    texts = references(Path(folder) if folder else None)
    laws = Laws(GRADERS[grader], texts, seed, size=200)
    click.echo(f"{len(texts)} references, seed {seed}\n")
    click.echo("| law | tried | violations |\n|---|--:|--:|")
    examples, violations = [], 0
    for name in names or (*KINDS, *LAWS):
        tried = laws.edit(name, limit) if name in KINDS else LAWS[name](laws)
        title = f"edit: {name}" if name in KINDS else name
        click.echo(f"| {title} | {tried.num_tried} | {len(tried.violations)} |")
        violations += len(tried.violations)
        examples += [(title, texts) for texts in tried.violations[:3]]
    for title, example in examples:
        click.echo(f"{title}: {' | '.join(map(repr, example))}")
    click.get_current_context().exit(violations > 0)


@main.command("rules")
@click.argument("folder", default=os.environ.get("RECKON_SHARED", ""))
@click.option("--write", "writes", is_flag=True, help="Write what is measured into the source.")
@click.option("--page", is_flag=True, help="Print the table of the source into the README.")
def rules(folder: str, writes: bool, page: bool) -> None:
    """Print each rule's rows on the sets in FOLDER; exit 1 if the source has other numbers."""
    if page:
        write_between(PAGE, "rules", rule_table())
        return
    rows = earned(Path(folder))
    for name, count in rows.items():
        click.echo(f"{count:6} {name}")
    if writes:
        write(rows)
    elif stale := [rule.name for rule in TABLE if rule.rows != rows[rule.name]]:
        raise click.ClickException(f"the source has other rows for {', '.join(stale)}: --write")


if __name__ == "__main__":
    main()
