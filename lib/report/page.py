"""`report.html`: one file that needs no network, with a browser for the completions.

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
from typing import TYPE_CHECKING, Any

import vl_convert

from lib.artifacts.completions import GradedCompletion
from lib.artifacts.rollouts import TrainingRollout
from lib.report.charts import INK, LOOK, colors_of
from lib.report.comparisons import steps_of_training
from lib.report.inputs import Run
from lib.report.sample import (
    COMPLETIONS_BUDGET,
    ROLLOUTS_BUDGET,
    Blocks,
    by_checkpoint,
    count_kinds,
    fit,
    ranked_answers,
    ranked_rollouts,
)
from lib.report.tables import CLASSES, REASONS, measures
from lib.report.templates import render, source
from lib.report.text import cell

if TYPE_CHECKING:
    from lib.report.report import Report

SCRIPTS = (
    "unpack.js",
    "page.js",
    "charts.js",
    "filters.js",
    "detail.js",
    "address.js",
    "training.js",
    "rollouts.js",
)


def render_page(report: "Report", run: Run) -> str:
    """The whole page."""
    steps = list(steps_of_training(run.checkpoints, run.starts))
    ranked = ranked_answers(run.completions, steps=steps, exported=run.exported)
    answers, blocks = fit(
        ranked,
        lambda some: completion_blocks(run, by_checkpoint(some, run.completions)),
        budget=COMPLETIONS_BUDGET,
        length=lambda each: sum(len(row.completion) for row in each.rows),
    )
    rollouts, training = fit(
        ranked_rollouts(run.rollouts),
        training_blocks,
        budget=ROLLOUTS_BUDGET,
        length=lambda rows: sum(len(row.completion) for row in rows),
    )
    return render(
        "page.html.j2",
        autoescape=True,
        report=report,
        trained=run.trained,
        curves=any(run.curves.values()) or any(run.validations.values()),
        graded=run.graded,
        scores=list(headline_scores(run)),
        benchmark=run.benchmarks[0],
        colors=colors_of(run.checkpoints),
        reasons=[(name, REASONS.get(name, name)) for name in reasons_of(run)],
        num_completions=sum(map(len, run.completions.values())),
        shown=list(zip(count_kinds(answers).items(), count_kinds(ranked).values(), strict=True))
        if len(answers) < len(ranked)
        else [],
        num_rollouts={"shown": sum(map(len, rollouts)), "all": len(run.rollouts)},
        blocks={**dict(data_blocks(report)), **blocks, **training},
        licenses=source("licenses.txt"),
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


def data_blocks(report: "Report") -> Iterator[tuple[str, str]]:
    """The charts and what draws them, by block name, compressed and in base64."""
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


def completion_blocks(run: Run, completions: Mapping[str, Sequence[GradedCompletion]]) -> Blocks:
    """What the rollout browser needs of `completions`, some of the run's."""
    # The text of a problem travels once, and not with every completion.
    first: dict[tuple[str, str], GradedCompletion] = {}
    for rows in completions.values():
        for row in rows:
            first.setdefault(_key(row), row)
    index = {key: number for number, key in enumerate(first)}
    content = {
        "checkpoints": list(run.checkpoints),
        "exported": run.exported,
        "before": {
            after: before for before, after in steps_of_training(run.checkpoints, run.starts)
        },
        "benchmarks": list(run.benchmarks),
        "classes": list(CLASSES.items()),
        "reasons": REASONS,
        "colors": colors_of(run.checkpoints),
        "problems": [_problem(row, _prompt(run, key)) for key, row in first.items()],
    }
    blocks = {"problems": packed(content)}
    for name, rows in completions.items():
        columns: dict[str, Any] = {"problem": [index[_key(row)] for row in rows]}
        blocks[f"rollouts-{name}"] = packed(columns | columns_of(rows, COLUMNS))
    return blocks


def training_blocks(groups: Sequence[Sequence[TrainingRollout]]) -> Blocks:
    """What the browser of training rollouts needs, in the order of the steps."""
    problems = {rows[0].problem: number for number, rows in enumerate(groups)}
    rows = sorted((row for of in groups for row in of), key=lambda row: row.step)
    columns: dict[str, Any] = {"problem": [problems[row.problem] for row in rows]}
    content = {
        "problems": [
            {"text": of[0].problem, "reference": of[0].reference, "prompt": of[0].prompt}
            for of in groups
        ],
        "columns": columns | columns_of(rows, TRAINING_COLUMNS),
        "order": list(TRAINING_COLUMNS),
    }
    return {"training": packed(content)}


def columns_of(rows: Sequence[object], fields: Mapping[str, str]) -> dict[str, list[Any]]:
    """A list for each of `fields`, which are attributes by the page's names."""
    return {name: [getattr(row, field) for row in rows] for name, field in fields.items()}


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
"""What a completion carries to the page, by the page's name for it."""

TRAINING_COLUMNS = {
    "step": "step",
    "sample": "sample",
    "text": "completion",
    "rewards": "rewards",
    "reward": "reward",
    "advantage": "advantage",
    "tokens": "num_tokens",
    "lossTokens": "num_loss_tokens",
    "truncated": "truncated",
    "gap": "log_prob_gap",
    "extra": "extra",
}
"""The same of a training rollout."""


def _key(row: GradedCompletion) -> tuple[str, str]:
    return row.benchmark, row.problem_id


def _prompt(run: Run, key: tuple[str, str]) -> str | dict[str, str]:
    """What was read: one text, or one by checkpoint where they read different ones."""
    texts = {name: prompts[key] for name, prompts in run.prompts.items() if key in prompts}
    different = set(texts.values())
    return different.pop() if len(different) == 1 else texts


def _problem(row: GradedCompletion, prompt: str | dict[str, str]) -> dict[str, Any]:
    return {
        "prompt": prompt,
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
