"""`report.html`: one file that needs no network, with a browser for the completions.

The completions travel compressed, one block a checkpoint, and are unpacked after the first paint;
so is the chart library. Completions are hostile text: they reach the page as JSON inside base64
and are only ever shown as text nodes. A page holds all of them where they fit, else what a reader
looks for first, so that the page of any run opens at once and can be sent; every completion is in
the stages' JSONL files.
"""

import base64
import dataclasses
import functools
import hashlib
import json
import zlib
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import vl_convert

from lib.artifacts.completions import GREEDY, GradedCompletion, TrainingRollout
from lib.report.charts import INK, LOOK, colors_of
from lib.report.inputs import Run
from lib.report.report import Report
from lib.report.tables import CLASSES, REASONS, measures
from lib.report.text import cell, rate_parts, render

Row = TypeVar("Row", GradedCompletion, TrainingRollout)

Blocks = Mapping[str, str]
"""What the page carries, compressed, by block name."""

COMPLETIONS_BUDGET = 3_000_000
ROLLOUTS_BUDGET = 750_000
"""Bytes of the page; with the chart library (0.3 MB), curves and tables it stays below 5 MB."""

COMPRESSION = 12
"""No text of many completions is compressed further: more than this is not tried."""

KINDS = ("regressions", "failures", "others")
"""Right before and wrong after; wrong, as the checkpoint that matters answers; the rest."""

COLUMNS = (
    "mode",
    "sample",
    "completion",
    "answer",
    "label",
    "decided_by",
    "rewards",
    "reward",
    "num_tokens",
    "truncated",
)
"""What a completion carries to the page."""

PER_PROBLEM = ("problem", "reference", "prompt")
"""What travels once with the rollouts of a problem."""


def render_page(report: Report) -> str:
    """The whole page."""
    run, read = report.run, with_validated(report.run)
    ranked = ranked_answers(read)
    answers, blocks = fit(
        [group for groups in ranked.values() for group in groups],
        lambda groups: completion_blocks(read, groups),
        budget=COMPLETIONS_BUDGET,
    )
    rollouts, training = fit(ranked_rollouts(run.rollouts), training_blocks, budget=ROLLOUTS_BUDGET)
    kept, shown = {id(group) for group in answers}, []
    for kind, groups in ranked.items():
        count = sum(len(group) for group in groups if id(group) in kept)
        shown.append((kind, count, sum(map(len, groups))))
    reasons = Counter(row.decided_by for rows in read.completions.values() for row in rows)
    return render(
        "page.html.j2",
        report=report,
        run=run,
        curves=any(run.curves.values()) or any(run.validations.values()),
        scores=[row for row in measures(run.metrics, run.benchmarks[0]) if row[0].strong],
        parts=lambda numbers, name: cell(numbers, name, rate_parts),
        colors=colors_of(run.checkpoints),
        reasons=[(name, REASONS.get(name, name)) for name, _ in reasons.most_common()],
        shown=shown,
        num_rollouts=sum(map(len, rollouts)),
        blocks={
            "charts": packed([dataclasses.asdict(figure) for figure in report.figures]),
            "look": packed({"config": LOOK, "ink": INK}),
            "vega": packed_text(chart_library()),
            **blocks,
            **training,
        },
    )


def with_validated(run: Run) -> Run:
    """The run with the completions of validation beside those of its benchmarks, to be read; the
    report's numbers are of the benchmarks only."""
    completions = {
        name: (*rows, *run.validated.get(name, ())) for name, rows in run.completions.items()
    }
    names = [row.benchmark for rows in run.validated.values() for row in rows]
    benchmarks = tuple(dict.fromkeys((*run.benchmarks, *names)))
    return dataclasses.replace(run, completions=completions, benchmarks=benchmarks)


def ranked_answers(run: Run) -> dict[str, list[list[GradedCompletion]]]:
    """By kind, all answers to one problem in one mode together: greedy first, then spread.

    An answer gets worse since the checkpoint that its own was trained from.
    """
    together: dict[tuple[str, str, str], dict[tuple[str, int], GradedCompletion]]
    together = defaultdict(dict)
    for name, rows in run.completions.items():
        for row in rows:
            together[row.benchmark, row.problem_id, row.mode][name, row.sample] = row
    ranked: dict[str, list[list[GradedCompletion]]] = {kind: [] for kind in KINDS}
    for key in sorted(together, key=lambda key: (key[2] != GREEDY, _shuffled(*key))):
        answers = together[key]
        wrong = [place for place, row in answers.items() if not row.answer_ok]
        earlier = (answers.get((run.origins.get(name, ""), sample)) for name, sample in wrong)
        if any(row and row.answer_ok for row in earlier):
            kind = "regressions"
        else:
            kind = "failures" if any(name == run.exported for name, _ in wrong) else "others"
        ranked[kind].append(list(answers.values()))
    return ranked


def ranked_rollouts(rollouts: Sequence[TrainingRollout]) -> list[list[TrainingRollout]]:
    """Rollouts by problem, those first that came up at the most steps."""
    together: dict[str, list[TrainingRollout]] = defaultdict(list)
    for rollout in rollouts:
        together[rollout.problem].append(rollout)
    return sorted(
        together.values(),
        key=lambda rows: (-len({row.step for row in rows}), _shuffled(rows[0].problem)),
    )


def fit(
    groups: Sequence[Sequence[Row]],
    pack: Callable[[Sequence[Sequence[Row]]], Blocks],
    *,
    budget: int,
) -> tuple[Sequence[Sequence[Row]], Blocks]:
    """As many of the first groups as `budget` bytes hold, and their blocks."""
    sizes = accumulate(sum(len(row.completion) for row in rows) for rows in groups)
    count = bisect_left(list(sizes), budget * COMPRESSION)
    while True:
        blocks = pack(groups[:count])
        size = sum(map(len, blocks.values()))
        if size <= budget or not count:
            return groups[:count], blocks
        count = int(count * min(0.95, budget / size))


def _shuffled(*key: str) -> bytes:
    """An order that has nothing to do with that of the file."""
    return hashlib.sha256("/".join(key).encode("utf-8", "replace")).digest()


def completion_blocks(run: Run, groups: Sequence[Sequence[GradedCompletion]]) -> Blocks:
    """What the rollout browser needs of `groups` of the run's completions."""
    kept = {id(row) for group in groups for row in group}
    completions = {
        name: [row for row in rows if id(row) in kept] for name, rows in run.completions.items()
    }
    # The text of a problem travels once, and not with every completion.
    problems = {
        (row.benchmark, row.problem_id): row for rows in completions.values() for row in rows
    }
    index = {key: number for number, key in enumerate(problems)}
    content = {
        "checkpoints": run.checkpoints,
        "exported": run.exported,
        "before": run.origins,
        "benchmarks": run.benchmarks,
        "classes": list(CLASSES.items()),
        "reasons": REASONS,
        "colors": colors_of(run.checkpoints),
        "problems": [
            {
                "prompt": _prompt(run, key),
                "id": row.problem_id,
                "benchmark": row.benchmark,
                "problem": row.problem,
                "reference": row.reference,
                "subject": row.subject,
                "level": str(row.level),
                "tags": row.tags,
            }
            for key, row in problems.items()
        ],
    }
    blocks = {"problems": packed(content)}
    for name, rows in completions.items():
        places = [index[row.benchmark, row.problem_id] for row in rows]
        blocks[f"rollouts-{name}"] = packed(_columns(rows, COLUMNS, places))
    return blocks


def _prompt(run: Run, key: tuple[str, str]) -> str | dict[str, str]:
    """What was read: one text, or one by checkpoint where they read different ones."""
    texts = {name: prompts[key] for name, prompts in run.prompts.items() if key in prompts}
    different = set(texts.values())
    return different.pop() if len(different) == 1 else texts


def training_blocks(groups: Sequence[Sequence[TrainingRollout]]) -> Blocks:
    """What the browser of training rollouts needs, in the order of the steps."""
    rows = [(row, place) for place, group in enumerate(groups) for row in group]
    rows.sort(key=lambda row: row[0].step)
    problems = [
        {"text": of[0].problem, "reference": of[0].reference, "prompt": of[0].prompt}
        for of in groups
    ]
    names = [of.name for of in dataclasses.fields(TrainingRollout) if of.name not in PER_PROBLEM]
    columns = _columns([row for row, _ in rows], names, [place for _, place in rows])
    return {"training": packed({"problems": problems, "columns": columns})}


def _columns(
    rows: Sequence[object], names: Sequence[str], places: Sequence[int]
) -> dict[str, list[Any]]:
    """A list for each of `names`, and the places of the rows' problems."""
    return {"place": [*places], **{name: [getattr(row, name) for row in rows] for name in names}}


@functools.cache
def chart_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script; bundling takes seconds."""
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def packed(content: Any) -> str:
    """JSON, compressed, in base64; pure ASCII, so that even a lone surrogate travels."""
    return packed_text(json.dumps(content, separators=(",", ":")))


def packed_text(text: str) -> str:
    """Text, compressed (zlib), in base64."""
    return base64.b64encode(zlib.compress(text.encode("utf-8"), level=9)).decode("ascii")
