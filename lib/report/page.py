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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import vl_convert

from lib.completions import GradedCompletion
from lib.report.charts import INK, LOOK, Figure, colors_of
from lib.report.content import Report
from lib.report.inputs import Run
from lib.report.tables import CLASSES, REASONS, measures
from lib.report.templates import render, source
from lib.report.text import percent

SCRIPTS = ("page.js", "charts.js", "filters.js", "detail.js", "address.js", "rollouts.js")


def render_page(report: Report, run: Run) -> str:
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
    strong = [row for row in measures(run.metrics[run.checkpoints[0]][benchmark]) if row.strong]
    for name in run.checkpoints:
        modes = run.metrics[name].get(benchmark, {})
        numbers = [(row, modes.get(row.mode, {})) for row in strong]
        yield {
            "name": name,
            "skipped": name in run.skipped,
            "rates": [
                {
                    "title": row.title,
                    "value": percent(of.get(row.name)),
                    "se": percent(of.get(f"{row.name}_se")),
                    "width": round(100 * of.get(row.name, 0.0), 1),
                }
                for row, of in numbers
            ],
        }


def reasons_of(run: Run) -> list[str]:
    """What decided the grades of this run, the most frequent first."""
    counted = Counter(row.decided_by for rows in run.completions.values() for row in rows)
    return [name for name, _ in counted.most_common()]


def data_blocks(report: Report, run: Run) -> Iterator[tuple[str, str]]:
    """Everything the scripts need, by block name, compressed and in base64."""
    yield "charts", packed([_chart(figure) for figure in report.figures])
    yield "look", packed({"config": LOOK, "ink": INK})
    yield "vega", _chart_library()
    table = _ProblemTable()
    rows = {name: table.columns(of) for name, of in run.completions.items()}
    yield (
        "problems",
        packed(
            {
                "checkpoints": list(run.checkpoints),
                "exported": run.exported,
                "benchmarks": list(run.benchmarks),
                "classes": list(CLASSES.items()),
                "reasons": REASONS,
                "colors": colors_of(run.checkpoints),
                "problems": table.problems,
            }
        ),
    )
    for name, columns in rows.items():
        yield f"rollouts-{name}", packed(columns)


@functools.cache
def _chart_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script; bundling takes seconds."""
    return packed_text(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


class _ProblemTable:
    """The distinct problems, so that their text travels once and not with every completion."""

    def __init__(self) -> None:
        self.problems: list[dict[str, Any]] = []
        self._places: dict[tuple[str, str], int] = {}

    def columns(self, rows: Sequence[GradedCompletion]) -> dict[str, list[Any]]:
        """The rows of one checkpoint, column by column."""
        return {
            "problem": [self._place(row) for row in rows],
            "mode": [row.mode for row in rows],
            "sample": [row.sample for row in rows],
            "text": [row.completion for row in rows],
            "answer": [row.answer for row in rows],
            "label": [row.label for row in rows],
            "why": [row.decided_by for row in rows],
            "rewards": [row.rewards for row in rows],
            "reward": [row.reward for row in rows],
            "tokens": [row.num_tokens for row in rows],
            "truncated": [row.truncated for row in rows],
        }

    def _place(self, row: GradedCompletion) -> int:
        key = (row.benchmark, row.problem_id)
        if key not in self._places:
            self._places[key] = len(self.problems)
            self.problems.append(
                {
                    "id": row.problem_id,
                    "benchmark": row.benchmark,
                    "problem": row.problem,
                    "reference": row.reference,
                    "subject": row.subject,
                    "level": str(row.level),
                    "tags": row.tags,
                }
            )
        return self._places[key]


def _chart(figure: Figure) -> Mapping[str, Any]:
    panels = [{"title": panel.title, "spec": panel.spec} for panel in figure.panels]
    return {"name": figure.name, "panels": panels}


def packed(content: Any) -> str:
    """JSON, compressed, in base64; pure ASCII, so that even a lone surrogate travels."""
    return packed_text(json.dumps(content, separators=(",", ":")))


def packed_text(text: str) -> str:
    """Text, compressed (zlib), in base64."""
    return base64.b64encode(zlib.compress(text.encode("utf-8"), level=9)).decode("ascii")
