"""`report.md`: for terminals, pull requests and the web view of the repository."""

from lib.report.content import Report
from lib.report.tables import Table
from lib.report.templates import render
from lib.report.text import markdown_block, markdown_inline


def render_markdown(report: Report, *, figures: str) -> str:
    """The whole report.

    Args:
        report: what to say.
        figures: folder of the SVG files, relative to the report.
    """
    return render(
        "report.md.j2",
        autoescape=False,
        report=report,
        figures=figures,
        table=markdown_table,
        inline=markdown_inline,
        block=markdown_block,
    )


def markdown_table(table: Table) -> str:
    """A pipe table, numbers to the right, strong rows bold."""
    header = [markdown_inline(cell) for cell in table.header]
    ruler = [":--", *("--:" for _ in header[1:])]
    body = [
        [_bold(cell) if number in table.strong else markdown_inline(cell) for cell in row]
        for number, row in enumerate(table.rows)
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ruler, *body))


def _bold(cell: str) -> str:
    return f"**{markdown_inline(cell)}**"
