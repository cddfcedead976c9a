"""Which completions the page holds: all where they fit, else what a reader looks for first.

A page of any run stays within a few megabytes, so that it opens at once and can be sent; every
completion is in the stages' JSONL files.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from lib.artifacts.completions import GREEDY, GradedCompletion, TrainingRollout

Blocks = Mapping[str, str]
"""What the page carries, compressed, by block name."""

COMPLETIONS_BUDGET = 3_000_000
ROLLOUTS_BUDGET = 750_000
"""Bytes of the page; with the chart library (0.3 MB), curves and tables it stays below 5 MB."""

COMPRESSION = 12
"""No text of many completions is compressed further: more than this is not tried."""

KINDS = ("regressions", "failures", "others")
"""Right before and wrong after; wrong, as the checkpoint that matters answers; the rest."""

Row = TypeVar("Row", GradedCompletion, TrainingRollout)


def ranked_answers(
    completions: Mapping[str, Sequence[GradedCompletion]],
    *,
    origins: Mapping[str, str],
    exported: str,
) -> dict[str, list[list[GradedCompletion]]]:
    """By kind, all answers to one problem in one mode together: greedy first, then spread.

    Args:
        completions: by checkpoint.
        origins: by trained checkpoint, the one before it, since which an answer may get worse.
        exported: the checkpoint whose failures count.
    """
    together: dict[tuple[str, str, str], dict[tuple[str, int], GradedCompletion]]
    together = defaultdict(dict)
    for name, rows in completions.items():
        for row in rows:
            together[row.benchmark, row.problem_id, row.mode][name, row.sample] = row
    ranked: dict[str, list[list[GradedCompletion]]] = {kind: [] for kind in KINDS}
    for key in sorted(together, key=lambda key: (key[2] != GREEDY, _shuffled(*key))):
        answers = together[key]
        wrong = [place for place, row in answers.items() if not row.answer_ok]
        earlier = (answers.get((origins.get(name, ""), sample)) for name, sample in wrong)
        if any(row and row.answer_ok for row in earlier):
            kind = "regressions"
        else:
            kind = "failures" if any(name == exported for name, _ in wrong) else "others"
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
    left, count = budget * COMPRESSION, 0
    for rows in groups:
        left -= sum(len(row.completion) for row in rows)
        if left <= 0:
            break
        count += 1
    while True:
        blocks = pack(groups[:count])
        size = sum(map(len, blocks.values()))
        if size <= budget or not count:
            return groups[:count], blocks
        count = int(count * min(0.95, budget / size))


def _shuffled(*key: str) -> bytes:
    """An order that has nothing to do with that of the file."""
    return hashlib.sha256("/".join(key).encode("utf-8", "replace")).digest()
