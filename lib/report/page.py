"""`report.html`: one file that needs no network, with a browser for every completion.

The completions travel compressed, one block a checkpoint, and are unpacked after the first paint;
so is the chart library. Completions are hostile text: they reach the page as JSON inside base64
and are only ever shown as text nodes.
"""

import base64
import functools
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import vl_convert

from lib.artifacts.completions import GradedCompletion
from lib.report.charts import INK, LOOK, colors_of
from lib.report.inputs import Run
from lib.report.tables import CLASSES, REASONS, measures
from lib.report.templates import render, source
from lib.report.text import cell

if TYPE_CHECKING:
    from lib.report.report import Report

SCRIPTS = ("page.js", "charts.js", "filters.js", "detail.js", "address.js", "rollouts.js")


def render_page(report: "Report", run: Run) -> str:
    """The whole page."""
    return render(
        "page.html.j2",
        autoescape=True,
        report=report,
        scores=list(headline_scores(run)),
        benchmark=run.benchmarks[0],
        colors=colors_of(run.checkpoints),
        reasons=[(name, REASONS.get(name, name)) for name in reasons_of(run)],
        num_completions=sum(map(len, run.completions.values())),
        blocks=dict(data_blocks(report, run)),
        style=source("page.css"),
        scripts=[source(name) for name in SCRIPTS],
    )


def headline_scores(run: Run) -> Iterator[dict[str, Any]]:
    """By checkpoint, the headline measures of the first benchmark."""
    benchmark = run.benchmarks[0]
    strong = [row for row in measures(run.modes(run.checkpoints[0], benchmark)) if row.strong]
    for name in run.checkpoints:
        rates = []
        for row in strong:
            numbers = run.modes(name, benchmark).get(row.mode, {})
            value, _, error = cell(numbers, row.name).partition(" ")
            rates.append(
                {
                    "title": row.title,
                    "value": value,
                    "error": error,
                    "width": round(100 * numbers.get(row.name, 0.0), 1),
                }
            )
        yield {"name": name, "skipped": name in run.skipped, "rates": rates}


def reasons_of(run: Run) -> list[str]:
    """What decided the grades of this run, the most frequent first."""
    counted = Counter(row.decided_by for rows in run.completions.values() for row in rows)
    return [name for name, _ in counted.most_common()]


def data_blocks(report: "Report", run: Run) -> Iterator[tuple[str, str]]:
    """Everything the scripts need, by block name, compressed and in base64."""
    charts = [
        {
            "name": figure.name,
            "panels": [{"title": panel.title, "spec": panel.spec} for panel in figure.panels],
        }
        for figure in report.figures
    ]
    yield "charts", packed(charts)
    yield "look", packed({"config": LOOK, "ink": INK})
    yield "vega", packed_text(chart_library())
    # The text of a problem travels once, and not with every completion.
    first: dict[tuple[str, str], GradedCompletion] = {}
    for rows in run.completions.values():
        for row in rows:
            first.setdefault(_key(row), row)
    index = {key: number for number, key in enumerate(first)}
    content = {
        "checkpoints": list(run.checkpoints),
        "exported": run.exported,
        "benchmarks": list(run.benchmarks),
        "classes": list(CLASSES.items()),
        "reasons": REASONS,
        "colors": colors_of(run.checkpoints),
        "problems": [_problem(row) for row in first.values()],
    }
    yield "problems", packed(content)
    for name, rows in run.completions.items():
        columns: dict[str, Any] = {"problem": [index[_key(row)] for row in rows]}
        for column, field in COLUMNS.items():
            columns[column] = [getattr(row, field) for row in rows]
        yield f"rollouts-{name}", packed(columns)


@functools.cache
def chart_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script; bundling takes seconds."""
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


COLUMNS = {
    "mode": "mode",
    "sample": "sample",
    "text": "completion",
    "answer": "answer",
    "label": "label",
    "why": "decided_by",
    "rewards": "rewards",
    "reward": "reward",
    "tokens": "num_tokens",
    "truncated": "truncated",
}
"""What a rollout carries to the page, by the page's name for it."""


def _key(row: GradedCompletion) -> tuple[str, str]:
    return row.benchmark, row.problem_id


def _problem(row: GradedCompletion) -> dict[str, Any]:
    return {
        "id": row.problem_id,
        "benchmark": row.benchmark,
        "problem": row.problem,
        "reference": row.reference,
        "subject": row.subject,
        "level": str(row.level),
        "tags": row.tags,
    }


def packed(content: Any) -> str:
    """JSON, compressed, in base64; pure ASCII, so that even a lone surrogate travels."""
    return packed_text(json.dumps(content, separators=(",", ":")))


def packed_text(text: str) -> str:
    """Text, compressed (zlib), in base64."""
    return base64.b64encode(zlib.compress(text.encode("utf-8"), level=9)).decode("ascii")
