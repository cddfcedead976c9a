"""The report in its forms: Markdown with figures, the page, tables of models, and the terminal.

And what DVC draws: a run's curves in a long format, with a row for each step and series, so that
one plot of DVC follows whatever was logged, the rewards of any stack and any sets of validation
problems. `.dvc/plots/curves.json` draws a panel for each series, and of a stage's own, wide CSV the
column that dvc.yaml names. `python -m lib.report.write` writes `.dvc/plots/page.html`, on which
every `dvc plots` draws (`.dvc/config`).
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lib.artifacts import replacing, write_curve, write_json, write_metrics
from lib.report.charts import LOOK, figure_svg
from lib.report.comparisons import MEASURES, compare_checkpoints, comparison_metrics, describe
from lib.report.figures import CURVES, reward_components, series_rows
from lib.report.inputs import Run
from lib.report.page import chart_library, packed, packed_text, render_page
from lib.report.report import Report, build_report
from lib.report.tables import breakdown, comparison_table, headline, titled
from lib.report.text import (
    Table,
    markdown_block,
    markdown_inline,
    markdown_table,
    render,
    table_lines,
)

SUMMARY = ("answer accuracy", "pass@", "pass^", "maj@", "format accuracy", "equations")
"""Beginnings of the rows that a reader looks for first."""

MOST_COLUMNS = 4
"""Models beside each other in a table."""

PAGE = Path(".dvc/plots/page.html")

OWN_PLOT = {
    "sft": "loss",
    "grpo": "completions/mean_length",
    "dpo": "rewards/accuracies",
}
"""By stage, the column that dvc.yaml draws from the stage's own CSV, and that no table repeats."""

VALIDATION = {
    "answer_accuracy": "answer accuracy",
    "format_accuracy": "format accuracy",
    "reasoning_present": "share with reasoning",
    "mean_reward": "mean reward",
    "mean_reasoning_chars": "characters of reasoning",
}
"""What validation measures."""


def write_report(
    run: Run, *, markdown: Path, figures: Path, page: Path, plots: Path, metrics: Path
) -> Report:
    """Build the report of `run` and write it in all its forms.

    Args:
        run: what the stages wrote.
        markdown: `report.md`; `figures` lies beside it.
        figures: folder of the SVG files; what else lies in it is removed.
        page: `report.html`.
        plots: folder of a long table for each stage that logged anything.
        metrics: the paired differences as numbers.

    Returns:
        What was written, for the terminal.
    """
    report = build_report(run)
    with replacing(figures) as folder:
        folder.mkdir()
        for figure in report.figures:
            (folder / f"{figure.name}.svg").write_text(figure_svg(figure), encoding="utf-8")
    with replacing(plots) as folder:
        folder.mkdir()
        for stage in run.curves:
            if table := long_table(run, stage):
                write_curve(folder / f"{stage}.csv", table, columns=("low", "high"))
    _write(markdown, render_markdown(report, figures=figures.name))
    _write(page, render_page(report))
    write_metrics(metrics, run_metrics(report))
    return report


def run_metrics(report: Report) -> dict[str, Any]:
    """The paired differences, and what the exported checkpoint came to on the first benchmark.

    No other file has the keys of `exported`, so `dvc exp show` names its columns without the file.
    """
    run = report.run
    modes = run.metrics[run.exported].get(run.benchmarks[0], {})
    rates = [(modes.get(mode, {}), name) for mode, name in MEASURES.items()]
    numbers: dict[str, Any] = {
        "exported": {name: of[name] for of, name in rates if name in of},
        "paired": [comparison_metrics(report.comparisons)],
        "measured_on": [value for name, value in report.facts if name == "measured on"],
    }
    for of in report.comparisons:
        differences = numbers.setdefault(f"{of.before}_to_{of.after}", {})
        differences.setdefault(of.benchmark, {})[of.mode] = of.change.difference.value
    return numbers


def write_models(run: Run, folder: Path) -> list[Table]:
    """Write `table.md`, `table.json` with the same as numbers, and `report.html`.

    Returns:
        By benchmark: the headline, a row each of more models than fit into columns; differences
        from the first model, accuracy by subject.
    """
    report = build_report(run)
    tables = []
    for benchmark in run.benchmarks:
        rates = headline(run.metrics, benchmark)
        if len(run.metrics) > MOST_COLUMNS:
            rows = [row for row in rates.rows if row[0].startswith(SUMMARY)]
            first, *others = zip(rates.header, *rows, strict=True)
            rates = Table(rates.title, first, tuple(others))
        differences = comparison_table(benchmark, report.comparisons)
        by_subject = breakdown(run.metrics, benchmark, "by_subject")
        tables += [
            rates,
            *([differences] if differences.rows else []),
            *([by_subject] if len(by_subject.rows) > 1 else []),
        ]
    sections = (f"**{table.title}**\n\n{markdown_table(table)}\n" for table in tables)
    _write(folder / "table.md", "\n".join(sections))
    _write(folder / "report.html", render_page(report))
    numbers = comparison_metrics(report.comparisons)
    write_json(folder / "table.json", {"metrics": run.metrics, "differences": numbers})
    return tables


def _write(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def render_markdown(report: Report, *, figures: str) -> str:
    """`report.md`, for terminals, pull requests and the web view of the repository.

    Args:
        figures: folder of the SVG files, relative to the report.
    """
    return render(
        "report.md.j2",
        report=report,
        run=report.run,
        figures=figures,
        table=markdown_table,
        inline=markdown_inline,
        block=markdown_block,
    )


def summary_lines(run: Run) -> Iterator[str]:
    """The headline table, and what the last phase changed on every set."""
    table = headline(titled(run.metrics, run.skipped), run.benchmarks[0])
    rows = tuple(row for row in table.rows if row[0].startswith(SUMMARY))
    title = f"{table.title}; %, ± standard error (≤, ≥: 95 %)"
    yield from table_lines(Table(title, table.header, rows))
    for of in compare_checkpoints(run):
        if of.after == run.checkpoints[-1]:
            yield f"{of.before} → {of.after}: {describe(of)}"


def long_table(run: Run, stage: str) -> list[dict[str, Any]]:
    """The rewards of a stage, what the report shows of it, and its validation.

    What is zero throughout is left out.

    Returns:
        {"step", "series", "value"} and, where an error is known, "low" and "high", a 95 % band.
    """
    curve, validation = run.curves[stage], run.validations[stage]
    settings = run.provenance.get("grpo", {}).get("settings", {}).get("grpo", {})
    # Completions to one problem are not independent, and how much they agree is not logged: the
    # band counts a problem's completions as one, so that the error of a step is at most this.
    scale = 1 / math.sqrt(settings.get("prompts_per_step", math.nan))
    components = {name: f"reward: {of}" for name, of in reward_components(curve).items()}
    titles = {"reward": "total reward"} | components | CURVES[stage]
    stds = {"reward": "reward_std"} | {name: name.replace("/mean", "/std") for name in components}
    series = [
        series_rows(curve, name, title, error=stds.get(name, ""), scale=scale)
        for name, title in titles.items()
        if name != OWN_PLOT[stage]
    ]
    for name in validation:
        benchmark, _, measure = name.rpartition("/")
        # dvc.yaml draws the answer accuracy of the first set, whose columns do not name it.
        if measure in VALIDATION and name != "answer_accuracy":
            title = f"validation {benchmark}".strip() + f": {VALIDATION[measure]}"
            series.append(series_rows(validation, name, title, error=f"{name}_se"))
    # Git keeps them: as many digits as are read.
    return [
        row | {name: float(f"{row[name]:.6g}") for name in ("value", "low", "high") if name in row}
        for rows in series
        if any(row["value"] for row in rows)
        for row in rows
    ]


def plots_page() -> str:
    """The page of `dvc plots`: Vega and its companions are in it, so that it needs no network."""
    return render("plots.html.j2", vega=packed_text(chart_library()), look=packed(LOOK))


if __name__ == "__main__":
    PAGE.write_text(plots_page(), encoding="utf-8")
