"""`report.html`: one file without network access, with a browser for the completions.

Completions and the chart library are compressed, one block per checkpoint, and unpacked after the
first paint. Completions are hostile text: the example is escaped; the others reach the page as JSON
inside base64, and scripts show them as text nodes only. A page has all completions if they fit.
Otherwise it has the first ones of `ranked_answers`, so that the page of any run opens at once and
can be sent by mail.
The stages' JSONL files have every completion.
"""

import base64
import dataclasses
import functools
import hashlib
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import vl_convert

from lib.artifacts.completions import GREEDY, TRAINING_COLUMNS, UNGRADED, GradedCompletion
from lib.core.errors import shorten, visible
from lib.report.charts import INK, LOOK, colors_of
from lib.report.inputs import Run
from lib.report.report import Report
from lib.report.tables import CLASSES, REASONS, measures
from lib.report.text import cell, rate_parts, render_template

TrainingRow = Mapping[str, Any]
"""A row of `read_rollouts`."""

Row = TypeVar("Row", GradedCompletion, TrainingRow)

Blocks = Mapping[str, str]
"""Block name → compressed content of the page."""

COMPLETIONS_BUDGET = 3_000_000
ROLLOUTS_BUDGET = 750_000
"""Bytes; with the chart library (0.4 MB), curves and tables, the page stays below 5 MB."""

COMPLETION_FIELDS = (
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
"""Fields of `GradedCompletion` that the rollout browser gets, one list per field."""

EXAMPLE_CHARACTERS = 600
"""Limit of each text above the browser. Completions keep their end, with the answer."""

PER_PROBLEM = ("problem", "reference", "prompt")
"""Columns of a training rollout that are stored once for each problem."""


def render_page(report: Report) -> str:
    """Render the whole page as HTML."""
    run = report.run
    answers = fit(ranked_answers(run), budget=COMPLETIONS_BUDGET)
    rollouts = fit(ranked_rollouts(run.rollouts), budget=ROLLOUTS_BUDGET)
    # The legend explains only the reasons that occur, the most frequent first.
    completions = [row for rows in run.all_completions.values() for row in rows]
    reasons = Counter(row.decided_by for row in completions)
    return render_template(
        "page.html.j2",
        report=report,
        run=run,
        curves=any(run.curves.values()) or any(run.validations.values()),
        scores=[row for row in measures(run.metrics, run.benchmarks[0]) if row[0].strong],
        parts=lambda numbers, name: cell(numbers, name, rate_parts),
        colors=colors_of(run.checkpoints),
        beginning=lambda text: visible(shorten(text, EXAMPLE_CHARACTERS)),
        ending=_ending,
        reasons=[(name, REASONS.get(name, name)) for name, _ in reasons.most_common()],
        num_answers=sum(map(len, answers)),
        num_completions=len(completions),
        num_rollouts=sum(map(len, rollouts)),
        blocks={
            "charts": pack_json([dataclasses.asdict(figure) for figure in report.figures]),
            "look": pack_json({"config": LOOK, "ink": INK}),
            "vega": pack_text(chart_library()),
            **completion_blocks(run, answers),
            **training_blocks(rollouts),
        },
    )


def ranked_answers(run: Run) -> list[list[GradedCompletion]]:
    """Return one group per problem and mode, all checkpoints' answers; the most informative first.

    First groups in which an answer got worse, then those in which the exported checkpoint is wrong,
    then the others. Among equals, greedy groups come first, then the order is that of a hash.
    """
    groups: dict[tuple[str, str, str], dict[tuple[str, int], GradedCompletion]] = defaultdict(dict)
    for name, rows in run.all_completions.items():
        for row in rows:
            groups[row.benchmark, row.problem_id, row.mode][name, row.sample] = row
    keys = sorted(
        groups,
        key=lambda key: (_rank(run, groups[key]), key[2] != GREEDY, _shuffle_key(*key)),
    )
    return [list(groups[key].values()) for key in keys]


def _rank(run: Run, answers: Mapping[tuple[str, int], GradedCompletion]) -> int:
    """Return 0 if an answer got worse, 1 if the exported checkpoint is wrong, else 2.

    An answer got worse if it is wrong, and the answer of its checkpoint's parent with the same
    sample number is right. An ungraded answer is not wrong.

    Args:
        answers: (checkpoint, sample number) → answer to one problem in one mode.
    """
    wrong = [
        key for key, row in answers.items() if not row.answer_ok and row.decided_by != UNGRADED
    ]
    for checkpoint, sample in wrong:
        earlier = answers.get((run.origins.get(checkpoint, ""), sample))
        if earlier and earlier.answer_ok:
            return 0
    return 1 if any(checkpoint == run.exported for checkpoint, _ in wrong) else 2


def ranked_rollouts(rollouts: Sequence[TrainingRow]) -> list[list[TrainingRow]]:
    """Group rollouts by problem, those sampled at the most steps first."""
    together: dict[str, list[TrainingRow]] = defaultdict(list)
    for rollout in rollouts:
        together[rollout["problem"]].append(rollout)
    return sorted(together.values(), key=lambda rows: -len({row["step"] for row in rows}))


def fit(groups: Sequence[Sequence[Row]], *, budget: int) -> Sequence[Sequence[Row]]:
    """Return the groups that together stay within `budget` bytes of the page, in order.

    A group that the rest of the budget does not hold is left out.

    Args:
        groups: rows that stay together, the preferred groups first.
        budget: most bytes of all groups together, each packed by itself. Packed together they need
            fewer.
    """
    kept = []
    for rows in groups:
        # A packed text has one byte per character. A completion's prompt is not counted, since it
        # mostly repeats the problem's text.
        size = len(pack_json(rows))
        # A large group must not hide the smaller ones behind it.
        if size <= budget:
            kept.append(rows)
            budget -= size
    return kept


def _ending(text: str) -> str:
    """Return the last `EXAMPLE_CHARACTERS` of a text, after a note on what is left out."""
    left_out = len(text) - EXAMPLE_CHARACTERS
    more = f"({left_out:,} characters before) … " if left_out > 0 else ""
    return more + visible(text[-EXAMPLE_CHARACTERS:])


def _shuffle_key(*key: str) -> bytes:
    """Return a hash of the key: sorting by it gives an order unrelated to the file's."""
    # "replace", since a lone surrogate has no UTF-8 encoding.
    return hashlib.sha256("/".join(key).encode("utf-8", "replace")).digest()


def completion_blocks(run: Run, groups: Sequence[Sequence[GradedCompletion]]) -> Blocks:
    """Pack those of the run's completions that are in `groups`, for the rollout browser.

    Returns:
        Compressed JSON by name:
        "problems": the problems' texts, and the browser's names and colours;
        "rollouts-<checkpoint>": its completions, each with the index of its problem.
    """
    # By identity, since completions cannot be hashed: their rewards are a dict.
    included = {id(row) for group in groups for row in group}
    completions = {
        name: [row for row in rows if id(row) in included]
        for name, rows in run.all_completions.items()
    }
    # (benchmark, problem id) → any completion of the problem, since all have its text. So the text
    # is stored once, instead of with every completion.
    problems = {
        (row.benchmark, row.problem_id): row for rows in completions.values() for row in rows
    }
    index = {key: number for number, key in enumerate(problems)}
    content = {
        "checkpoints": run.checkpoints,
        "exported": run.exported,
        "before": run.origins,
        "benchmarks": [*dict.fromkeys((*run.benchmarks, *(name for name, _ in problems)))],
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
                # The filters compare with the strings of `select.value`.
                "level": str(row.level),
                "tags": row.tags,
            }
            for key, row in problems.items()
        ],
    }
    blocks = {"problems": pack_json(content)}
    for name, rows in completions.items():
        places = [index[row.benchmark, row.problem_id] for row in rows]
        blocks[f"rollouts-{name}"] = pack_json(_columns(rows, COMPLETION_FIELDS, places))
    return blocks


def _prompt(run: Run, key: tuple[str, str]) -> str | dict[str, str]:
    texts = {name: prompts[key] for name, prompts in run.prompts.items() if key in prompts}
    different = set(texts.values())
    return different.pop() if len(different) == 1 else texts


def training_blocks(groups: Sequence[Sequence[TrainingRow]]) -> Blocks:
    """Compress training rollouts, in the order of the steps, for the page's rollout browser.

    Args:
        groups: a group has the rollouts of one problem.

    Returns:
        {"training": compressed JSON} of "problems", each problem's texts once, and of "columns",
        one list for each other field.
    """
    rows = [(rollout, place) for place, group in enumerate(groups) for rollout in group]
    rows.sort(key=lambda row: row[0]["step"])
    problems = [
        {"text": first["problem"], "reference": first["reference"], "prompt": first["prompt"]}
        for first, *_ in groups
    ]
    columns = {
        name: [rollout[name] for rollout, _ in rows]
        for name in TRAINING_COLUMNS
        if name not in PER_PROBLEM
    }
    columns["place"] = [place for _, place in rows]
    return {"training": pack_json({"problems": problems, "columns": columns})}


def _columns(
    rows: Sequence[object], names: Sequence[str], places: Sequence[int]
) -> dict[str, list[Any]]:
    """Return one list per field name, and `place`: the index of each row's problem."""
    # Columns compress better than rows: equal keys are written once.
    return {"place": [*places], **{name: [getattr(row, name) for row in rows] for name in names}}


@functools.cache
def chart_library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script; bundling takes seconds."""
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def pack_json(content: Any) -> str:
    """Compress JSON and encode it in base64; pure ASCII, so that even a lone surrogate survives."""
    return pack_text(json.dumps(content, separators=(",", ":"), default=dataclasses.asdict))


def pack_text(text: str) -> str:
    """Compress text (zlib) and encode it in base64."""
    # zlib's format is what `DecompressionStream("deflate")` reads (unpack.js).
    return base64.b64encode(zlib.compress(text.encode("utf-8"), level=9)).decode("ascii")
