"""Write the report: Markdown with figures, the page, tables of models, and the terminal's summary.

Also writes the curves for `dvc plots` in long format: {step, series, value}, one row per step and
series. A stage's own CSV is wide, a column per measure, and DVC draws from it only the column named
in dvc.yaml. The long table needs no series named there, so that it covers any reward stack and any
validation sets; `.dvc/plots/curves.json` draws a panel per series.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lib.artifacts import replacing, write_curve, write_metrics
from lib.report.charts import figure_svg
from lib.report.comparisons import MEASURES, compare_checkpoints, comparison_metrics, describe
from lib.report.figures import CURVES, SERIES, reward_components, series_rows
from lib.report.inputs import Run
from lib.report.page import render_page
from lib.report.report import Report, build_report
from lib.report.tables import breakdown, comparison_table, headline_table, mark_skipped
from lib.report.text import (
    Table,
    markdown_block,
    markdown_inline,
    markdown_table,
    render_template,
    table_lines,
)

SUMMARY = ("answer accuracy", "pass@", "pass^", "maj@", "format accuracy", "equations")
"""Prefixes of the row titles in the terminal's summary."""

MOST_COLUMNS = 4
"""Most models that are columns of the table; with more, each model is a row."""

OWN_PLOT = {
    "sft": "loss",
    "grpo": "completions/mean_length",
    "dpo": "rewards/accuracies",
}
"""Stage → the column that dvc.yaml draws from the stage's CSV; left out of the long table."""


def write_report(
    run: Run, *, markdown: Path, figures: Path, page: Path, plots: Path, metrics: Path
) -> Report:
    """Build the report of `run` and write it in all its forms.

    Args:
        run: the stages' results.
        markdown: `report.md`, in the parent folder of `figures`.
        figures: folder of the SVG files; replaced as a whole.
        page: `report.html`.
        plots: folder of one long table per stage that logged anything; replaced as a whole.
        metrics: JSON file of the exported checkpoint's rates and of the paired differences.

    Returns:
        The report, whose alarms the stage prints.
    """
    report = build_report(run)
    # `replacing` yields a temporary path, which takes the place of the whole folder at the end: so
    # figures of an earlier run disappear.
    with replacing(figures) as folder:
        folder.mkdir()
        for figure in report.figures:
            (folder / f"{figure.name}.svg").write_text(figure_svg(figure), encoding="utf-8")
    with replacing(plots) as folder:
        folder.mkdir()
        for stage in run.curves:
            table = long_table(run, stage)
            if table:
                # The template of `dvc plots` reads both columns of the band, even if no series of
                # this stage has one.
                write_curve(folder / f"{stage}.csv", table, columns=("low", "high"))
    _write(markdown, render_markdown(report, figures=figures.name))
    _write(page, render_page(report))
    write_metrics(metrics, run_metrics(report))
    return report


def run_metrics(report: Report) -> dict[str, Any]:
    """Return the report's metrics: paired differences, and the exported checkpoint's rates.

    ::

        {"exported": {"answer_accuracy", "pass_at_1"},       # on the first benchmark
         "paired": [comparison_metrics(…)],                  # with errors and p-values
         "measured_on": [device],
         "sft_to_grpo": {"held_out": {"greedy": difference, "sampled": difference}}, …}

    The keys of `exported` are in no other metrics file, so that `dvc exp show` prints them without
    a file name.
    """
    run = report.run
    modes = run.metrics[run.exported].get(run.benchmarks[0], {})
    exported = {
        name: modes[mode][name] for mode, name in MEASURES.items() if name in modes.get(mode, {})
    }
    numbers: dict[str, Any] = {
        "exported": exported,
        # In a list, which `dvc metrics diff` skips: it shows only the plain differences added
        # below.
        "paired": [comparison_metrics(report.comparisons)],
        "measured_on": [value for name, value in report.facts if name == "measured on"],
    }
    for each in report.comparisons:
        differences = numbers.setdefault(f"{each.before}_to_{each.after}", {})
        differences.setdefault(each.benchmark, {})[each.mode] = each.change.difference.value
    return numbers


def write_models(run: Run, folder: Path) -> list[Table]:
    """Write `table.md` and `report.html` for evaluated models.

    Args:
        run: the models, each compared with the first.
        folder: where to write.

    Returns:
        The tables of `table.md`. For each benchmark: the headline table (a row per model if there
        are more than `MOST_COLUMNS`), the differences from the first model, accuracy by subject.
    """
    report = build_report(run)
    tables = []
    for benchmark in run.benchmarks:
        rates = headline_table(run.metrics, benchmark)
        if len(run.metrics) > MOST_COLUMNS:
            rows = [row for row in rates.rows if row[0].startswith(SUMMARY)]
            header, *models = zip(rates.header, *rows, strict=True)
            rates = Table(rates.title, header, tuple(models))
        tables.append(rates)
        differences = comparison_table(benchmark, report.comparisons)
        if differences.rows:
            tables.append(differences)
        by_subject = breakdown(run.metrics, benchmark, "by_subject")
        if len(by_subject.rows) > 1:
            tables.append(by_subject)
    sections = (f"**{table.title}**\n\n{markdown_table(table)}\n" for table in tables)
    _write(folder / "table.md", "\n".join(sections))
    _write(folder / "report.html", render_page(report))
    return tables


def _write(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def render_markdown(report: Report, *, figures: str) -> str:
    """Return the text of `report.md`, for terminals, pull requests and the repository's web view.

    Args:
        figures: folder of the SVG files, relative to the report.
    """
    return render_template(
        "report.md.j2",
        report=report,
        run=report.run,
        figures=figures,
        table=markdown_table,
        inline=markdown_inline,
        block=markdown_block,
    )


def summary_lines(run: Run) -> Iterator[str]:
    """Yield lines for the terminal: the headline table, then the last phase's changes.

    The table is of the first benchmark; the changes, one sentence each, are of all.
    """
    table = headline_table(mark_skipped(run.metrics, run.skipped), run.benchmarks[0])
    # Only the main measures, so that the summary fits a terminal's first screen: SUMMARY has the
    # beginnings of their titles, row[0].
    rows = tuple(row for row in table.rows if row[0].startswith(SUMMARY))
    title = f"{table.title}; %, ± standard error (≤, ≥: 95 %)"
    yield from table_lines(Table(title, table.header, rows))
    comparisons = list(compare_checkpoints(run))
    for each in comparisons:
        if each.after == run.checkpoints[-1]:
            yield f"{each.before} → {each.after}: {describe(each, among=len(comparisons))}"


def long_table(run: Run, stage: str) -> list[dict[str, Any]]:
    """Return a stage's curves in long format: rewards, other measures, validation.

    Left out are series that are zero at every step, and what dvc.yaml draws from the stage's own
    CSV: the column `OWN_PLOT`, and answer accuracy on the first validation set.

    Returns:
        {"step", "series", "value"}, one row per step and series; series with a known error also
        have a 95 % band, "low" and "high".
    """
    curve, validation = run.curves[stage], run.validations[stage]
    # Factor from the standard deviation of a step's rewards, which only GRPO logs, to the standard
    # error of their mean: 1 / √(problems per step). This is an upper bound: completions of one
    # problem are correlated, so that all of them count as one observation. Their correlation is
    # not logged. NaN, which gives no band, for a run without GRPO.
    settings = run.provenance.get("grpo", {}).get("settings", {}).get("grpo", {})
    scale = 1 / math.sqrt(settings.get("prompts_per_step", math.nan))
    components = {name: f"reward: {reward}" for name, reward in reward_components(curve).items()}
    # Column of means → column of standard deviations. The names are TRL's.
    stds = {"reward": "reward_std"} | {
        name: name.removesuffix("mean") + "std" for name in components
    }
    series = []
    for name, title in {"reward": "total reward", **components, **CURVES[stage]}.items():
        if name != OWN_PLOT[stage]:
            error = stds.get(name, "")
            series.append(series_rows(curve, name, title, error=error, scale=scale))
    for name in validation:
        set_name, _, measure = name.rpartition("/")
        if measure in SERIES["validation"] and name != "answer_accuracy":
            title = f"validation {set_name}".strip() + f": {SERIES['validation'][measure]}"
            series.append(series_rows(validation, name, title, error=f"{name}_se"))
    # Git tracks these files; digits beyond what a plot shows would only make diffs larger.
    return [
        row | {name: float(f"{row[name]:.6g}") for name in ("value", "low", "high") if name in row}
        for rows in series
        # DVC draws a panel per series: a series of zeros would be a panel without content.
        if any(row["value"] for row in rows)
        for row in rows
    ]
