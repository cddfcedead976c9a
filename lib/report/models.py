"""Several models on the same benchmarks: one table each, their paired differences, and a page."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from lib.artifacts import replacing, write_json
from lib.artifacts.completions import read_graded
from lib.report.comparisons import comparison_metrics
from lib.report.inputs import Metrics, Run, read_json
from lib.report.page import render_page
from lib.report.report import Report, build_report
from lib.report.tables import breakdown, comparison_table, headline
from lib.report.text import Table, markdown_table


def read_models(metrics: Mapping[str, Metrics], folder: Path) -> Run:
    """Models that anybody trained as a run: each is compared with the first.

    Args:
        metrics: by model.
        folder: of their graded completions, prompts and provenance.
    """
    names = tuple(metrics)
    return Run(
        checkpoints=names,
        starts=dict.fromkeys(names[1:], names[0]),
        benchmarks=tuple(dict.fromkeys(name for of in metrics.values() for name in of)),
        exported=names[-1],
        metrics=metrics,
        completions={name: tuple(read_graded(folder / f"graded/{name}.jsonl")) for name in names},
        prompts={
            name: {
                (benchmark, problem): text
                for benchmark, texts in read_json(folder / f"prompts/{name}.json").items()
                for problem, text in texts.items()
            }
            for name in names
        },
        graded=Path("graded"),  # from the page, which is in `folder`
        rollouts=(),
        curves={},
        validations={},
        skipped=frozenset(),
        stage_metrics={},
        provenance={
            f"evaluate/{name}": read_json(folder / f"provenance/{name}.json") for name in names
        },
        trained=False,
    )


def model_tables(run: Run, report: Report) -> Iterator[Table]:
    """By benchmark: the headline, differences from the first model, accuracy by subject."""
    for benchmark in run.benchmarks:
        yield headline(run.metrics, benchmark)
        differences = comparison_table(report.comparisons, benchmark)
        if differences.rows:
            yield differences
        by_subject = breakdown(run.metrics, benchmark, "by_subject")
        if by_subject and len(by_subject.rows) > 1:
            yield by_subject


def write_models(run: Run, folder: Path) -> list[Table]:
    """Write `table.md`, `table.json` with the same as numbers, and `report.html`; the tables."""
    report = build_report(run)
    tables = list(model_tables(run, report))
    sections = [f"**{table.title}**\n\n{markdown_table(table)}\n" for table in tables]
    for name, text in (
        ("table.md", "\n".join(sections)),
        ("report.html", render_page(report, run)),
    ):
        with replacing(folder / name) as partial:
            partial.write_text(text, encoding="utf-8")
    differences = comparison_metrics(report.comparisons)
    write_json(folder / "table.json", {"metrics": run.metrics, "differences": differences})
    return tables
