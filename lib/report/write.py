"""Write the report's files."""

from pathlib import Path

from lib.artifacts import replacing, write_metrics
from lib.report.charts import figure_svg
from lib.report.comparisons import comparison_metrics
from lib.report.content import Report, build_report
from lib.report.inputs import Run
from lib.report.markdown import render_markdown
from lib.report.page import render_page


def write_report(run: Run, *, markdown: Path, figures: Path, page: Path, metrics: Path) -> Report:
    """Build the report of `run` and write it in all its forms.

    Args:
        run: what the stages wrote.
        markdown: `report.md`; `figures` lies beside it.
        figures: folder of the SVG files; what else lies in it is removed.
        page: `report.html`.
        metrics: the paired differences as numbers.

    Returns:
        What was written, for the terminal.
    """
    report = build_report(run)
    with replacing(figures) as folder:
        folder.mkdir()
        for figure in report.figures:
            (folder / f"{figure.name}.svg").write_text(figure_svg(figure), encoding="utf-8")
    _write(markdown, render_markdown(report, figures=figures.name))
    _write(page, render_page(report, run))
    write_metrics(metrics, comparison_metrics(report.comparisons))
    return report


def _write(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
