"""Accuracy, speed and bounds of the verifier, and laws that it keeps.

python -m tests.bench.verifier [measure [FOLDER] [--no-write]]
python -m tests.bench.verifier laws [FOLDER] [--seed N] [--limit N] [--size N] [--show N]
python -m tests.bench.verifier rules [FOLDER] [--write]

FOLDER holds grading/pairs.jsonl, outputs.jsonl and hostile.jsonl, and in grading/fresh the sets
that no rule was written against, and in data the public sets whose references are edited too;
default: RECKON_SHARED.
"""

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lib.verifier.rules import TABLE
from tests.bench.verifier.graders import GRADERS, Grader
from tests.bench.verifier.hostile import WAYS, hostile
from tests.bench.verifier.laws import KINDS, LAWS, Laws
from tests.bench.verifier.references import references, rows_of
from tests.bench.verifier.rules import earned, write, write_page

HERE = Path(__file__).parent
SHORT = 60
"""Characters up to which reference and answer count as short."""

Row = dict[str, Any]


def cpu_s() -> float:
    """CPU seconds of this process and of its ended children."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


def accuracy(grader: Grader, rows: list[Row]) -> dict[str, Any]:
    verdicts = [grader(row["pred"], row["gold"], row["form"], "") for row in rows]
    wrong = [
        {"id": row["id"], "kind": row["kind"], "false": "positive" if verdict else "negative"}
        for row, verdict in zip(rows, verdicts, strict=True)
        if verdict != row["equal"]
    ]
    positives = sum(one["false"] == "positive" for one in wrong)
    return {
        "n": len(rows),
        "accuracy": round(1 - len(wrong) / len(rows), 4),
        "false_positives": positives,
        "false_negatives": len(wrong) - positives,
        "disagreements": wrong,
    }


def agreement(grader: Grader, rows: list[Row]) -> dict[str, Any]:
    wrong = [
        row
        for row in rows
        if grader(row["response"], row["gold"], "text", row.get("problem", "")) != row["label"]
    ]
    return {
        "n": len(rows),
        "agreement": round(1 - len(wrong) / len(rows), 4),
        "disagreements": [{"id": row["id"], "label": row["label"]} for row in wrong],
    }


def speed(grader: Grader, rows: list[Row]) -> dict[str, Any]:
    """Each short bare answer once, after one answer that loads the libraries."""
    short = [row for row in rows if row["form"] == "answer" and len(row["gold"]) <= SHORT]
    short = [row for row in short if len(row["pred"]) <= SHORT]
    grader(r"\sqrt{2}", "2^{1/2}", "answer", "")
    walls = []
    start = cpu_s()
    for row in short:
        began = time.perf_counter()
        grader(row["pred"], row["gold"], "answer", "")
        walls.append(1000 * (time.perf_counter() - began))
    used = cpu_s() - start
    return {
        "n": len(short),
        "answers_per_cpu_second": round(len(short) / used),
        "median_ms": round(statistics.median(walls), 3),
        "p99_ms": round(statistics.quantiles(walls, n=100)[98], 2),
    }


def fresh(grader: Grader, rows: list[Row]) -> dict[str, Any]:
    """Right answers found and wrong ones refused, on a set that no rule was written against.

    Rows with `marked_answer` ask whether the answer that a solution marks is extracted.
    """
    counts = {(truth, verdict): 0 for truth in (True, False) for verdict in (True, False)}
    missed = []
    for row in rows:
        reference = str(row.get("marked_answer", row["gold"]))
        truth = "marked_answer" in row or bool(row.get("equal", row.get("label")))
        form = "answer" if "pred" in row else "text"
        text = row["pred"] if "pred" in row else row["response"]
        verdict = grader(text, reference, form, row.get("question", ""))
        counts[truth, verdict] += 1
        if verdict != truth:
            missed.append(row["id"])
    rates = {"n": len(rows), "disagreements": missed}
    for name, truth in (("tpr", True), ("tnr", False)):
        total = counts[truth, True] + counts[truth, False]
        if total:
            rates[name] = round(counts[truth, truth] / total, 4)
    return rates


def timed(
    measure: Callable[[Grader, list[Row]], dict[str, Any]], grader: Grader, rows: list[Row]
) -> dict[str, Any]:
    """`measure` with its speed, extraction included."""
    start = cpu_s()
    measured = measure(grader, rows)
    return measured | {"answers_per_cpu_second": round(len(rows) / (cpu_s() - start))}


def asked_worker() -> int:
    """Questions to sympy since the last call."""
    from lib.verifier import counters, reset_counters

    calls = counters()["worker_calls"]
    reset_counters()
    return calls


def measure(name: str, folder: Path) -> dict[str, Any]:
    """All measurements of one grader, in this process; hostile rows for reckon alone.

    math-verify needs its alarm for them, and some end the process that grades them.
    """
    grader, pairs = GRADERS[name], rows_of(folder / "grading" / "pairs.jsonl")
    outputs = rows_of(folder / "grading" / "outputs.jsonl")
    sources = sorted({row["source"].partition("/")[0] for row in outputs})
    results: dict[str, Any] = {"speed": speed(grader, pairs), "pairs": accuracy(grader, pairs)}
    results["pairs"]["worker_calls"] = asked_worker()
    for source in sources:
        rows = [row for row in outputs if row["source"].startswith(source)]
        results[source] = timed(agreement, grader, rows) | {"worker_calls": asked_worker()}
    for path in sorted((folder / "grading" / "fresh").glob("*.jsonl")):
        rows = rows_of(path)
        results[path.stem] = timed(fresh, grader, rows) | {"worker_calls": asked_worker()}
    if name == "reckon":
        from lib.verifier import counters

        results["hostile"] = hostile(rows_of(folder / "grading" / "hostile.jsonl"))
        results["counters"] = counters()
    return results


def in_process_of_its_own(name: str, folder: Path) -> dict[str, Any]:
    """`measure` in a fresh interpreter, so that neither grader warms the other's caches."""
    command = [sys.executable, "-m", "tests.bench.verifier", "measure", str(folder), "--only", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    graders = list(results)
    rows: list[tuple[str, list[str]]] = []

    def add(title: str, *path: str, form: str = "{}") -> None:
        cells = []
        for grader in graders:
            value = results[grader]
            for key in path:
                value = value.get(key, "") if isinstance(value, dict) else ""
            cells.append(form.format(value) if value != "" else "not run")
        rows.append((title, cells))

    add("pairs: accuracy", "pairs", "accuracy", form="{:.2%}")
    add("pairs: false positives", "pairs", "false_positives")
    add("pairs: false negatives", "pairs", "false_negatives")
    add("tora: agreement with the labels", "tora", "agreement", form="{:.2%}")
    add("qwen2.5-math-rm: agreement", "qwen2.5-math-rm-example", "agreement", form="{:.2%}")
    for name in results["reckon"]:
        for rate in ("tpr", "tnr"):
            if isinstance(results["reckon"][name], dict) and rate in results["reckon"][name]:
                add(f"{name}: {rate.upper()}", name, rate, form="{:.2%}")
    for name, measured in results["reckon"].items():
        if name != "speed" and "answers_per_cpu_second" in measured:
            add(f"{name}: answers per CPU-second", name, "answers_per_cpu_second")
    add("short answers per CPU-second", "speed", "answers_per_cpu_second")
    add("median, ms", "speed", "median_ms")
    add("99th percentile, ms", "speed", "p99_ms")
    for way in WAYS:
        add(f"hostile, {way}: slowest, s", "hostile", way, "slowest_s")
        add(f"hostile, {way}: wrong", "hostile", way, "wrong")
    add("peak memory after all, MB", "hostile", "peak_memory_mb")
    head = f"| | {' | '.join(graders)} |\n|---|{'---|' * len(graders)}\n"
    return head + "".join(f"| {title} | {' | '.join(cells)} |\n" for title, cells in rows)


def write_table(text: str) -> None:
    """Replace the table between the marks of the README."""
    path = HERE / "README.md"
    before, _, rest = path.read_text(encoding="utf-8").partition("<!-- table -->\n")
    _, _, after = rest.partition("<!-- end of table -->\n")
    marked = f"{before}<!-- table -->\n{text}<!-- end of table -->\n{after}"
    path.write_text(marked, encoding="utf-8")


@click.group(help=__doc__, invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """Measure, which is also what no command means, or try the laws."""
    if context.invoked_subcommand is None:
        context.invoke(compare_graders)


@main.command("measure")
@click.argument("folder", default=os.environ.get("RECKON_SHARED", ""))
@click.option("--only", type=click.Choice(list(GRADERS)), help="Measure one, print JSON.")
@click.option("--no-write", is_flag=True, help="Print the table, write nothing.")
def compare_graders(folder: str, only: str | None, no_write: bool) -> None:
    """Compare the graders on the sets in FOLDER; writes results.json and the README's table."""
    sets = Path(folder)
    if not folder:
        click.echo("verifier: skipped, RECKON_SHARED is unset and no FOLDER is given")
        return
    if not (sets / "grading" / "pairs.jsonl").is_file():
        raise click.UsageError(f"{sets}: there is no grading/pairs.jsonl in it")
    if only:
        click.echo(json.dumps(measure(only, sets)))
        return
    results = {name: in_process_of_its_own(name, sets) for name in GRADERS}
    click.echo(table(results))
    if not no_write:
        kept = {"python": platform.python_version(), "graders": results}
        text = json.dumps(kept, indent=1, sort_keys=True) + "\n"
        (HERE / "results.json").write_text(text, encoding="utf-8")
        write_table(table(results))


@main.command("laws")
@click.argument("folder", default=os.environ.get("RECKON_SHARED", ""))
@click.option("--seed", default=0, show_default=True, help="Draws references, strings and edits.")
@click.option("--limit", default=1000, show_default=True, help="Edits of a kind, 0 for all.")
@click.option("--size", default=200, show_default=True, help="References of the other laws.")
@click.option("--show", default=3, show_default=True, help="Violations to print of a law or kind.")
@click.option("--kind", "names", multiple=True, type=click.Choice([*KINDS, *LAWS]))
@click.option("--grader", type=click.Choice(list(GRADERS)), default="reckon", show_default=True)
def try_laws(
    folder: str, seed: int, limit: int, size: int, show: int, names: tuple[str, ...], grader: str
) -> None:
    """Print how often each law was tried and broken, without labels; exit 1 where one was."""
    if not folder:
        click.echo("the public sets are skipped: RECKON_SHARED is unset and no FOLDER is given")
    texts = references(Path(folder) if folder else None)
    laws = Laws(GRADERS[grader], texts, seed, size)
    click.echo(f"{len(texts)} references, seed {seed}\n")
    click.echo("| law | tried | violations |\n|---|--:|--:|")
    examples, violations = [], 0
    for name in names or (*KINDS, *LAWS):
        tried = laws.edit(name, limit) if name in KINDS else LAWS[name](laws)
        title = f"edit: {name}" if name in KINDS else name
        click.echo(f"| {title} | {tried.num_tried} | {len(tried.violations)} |")
        violations += len(tried.violations)
        examples += [(title, texts) for texts in tried.violations[:show]]
    for title, example in examples:
        click.echo(f"{title}: {' | '.join(map(repr, example))}")
    click.get_current_context().exit(violations > 0)


@main.command("rules")
@click.argument("folder", default=os.environ.get("RECKON_SHARED", ""))
@click.option("--write", "writes", is_flag=True, help="Write what is measured into the source.")
@click.option("--page", is_flag=True, help="Print the table of the source into docs/verifier.md.")
def rules(folder: str, writes: bool, page: bool) -> None:
    """Print what each rule earns on the sets in FOLDER; exit 1 where the source has another."""
    if page:
        write_page()
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
