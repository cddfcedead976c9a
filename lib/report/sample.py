"""Which completions the page holds: all where they fit, else what a reader looks for first.

A page of any run stays within a few megabytes, so that it opens at once and can be sent; every
completion is in the stages' JSONL files.
"""

import dataclasses
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from lib.artifacts.completions import GREEDY, GradedCompletion
from lib.artifacts.rollouts import TrainingRollout

Blocks = Mapping[str, str]
"""What the page carries, compressed, by block name."""

COMPLETIONS_BUDGET = 3_000_000
ROLLOUTS_BUDGET = 750_000
"""Bytes of the page; with the chart library (0.3 MB), curves and tables it stays below 5 MB."""

COMPRESSION = 12
"""No text of many completions is compressed further: more than this is not tried."""

KINDS = ("regressions", "failures", "others")
"""Right before and wrong after; wrong, as the checkpoint that matters answers; the rest."""

Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProblemCompletions:
    """One problem in one mode: all samples of all checkpoints, which are compared on the page."""

    kind: str
    rows: Sequence[GradedCompletion]


def ranked_answers(
    completions: Mapping[str, Sequence[GradedCompletion]],
    *,
    steps: Sequence[tuple[str, str]],
    exported: str,
) -> list[ProblemCompletions]:
    """Regressions, failures of `exported`, others; in each, greedy before sampled, then spread.

    Args:
        completions: by checkpoint.
        steps: (before, after) of each phase of training, between which an answer may get worse.
        exported: the checkpoint whose failures count.
    """
    together: dict[tuple[str, str, str], list[GradedCompletion]] = defaultdict(list)
    right: dict[tuple[str, str, str], dict[tuple[str, int], bool]] = defaultdict(dict)
    for name, rows in completions.items():
        for row in rows:
            key = row.benchmark, row.problem_id, row.mode
            together[key].append(row)
            right[key][name, row.sample] = row.answer_ok
    kinds = {key: _kind(of, steps, exported) for key, of in right.items()}

    def rank(key: tuple[str, str, str]) -> tuple[int, bool, bytes]:
        return KINDS.index(kinds[key]), key[2] != GREEDY, _spread(*key)

    return [
        ProblemCompletions(kind=kinds[key], rows=together[key])
        for key in sorted(together, key=rank)
    ]


def _kind(
    right: Mapping[tuple[str, int], bool], steps: Sequence[tuple[str, str]], exported: str
) -> str:
    """The first of `KINDS` that any sample is."""
    if any(
        right.get((before, sample)) and not answer_ok
        for before, after in steps
        for (name, sample), answer_ok in right.items()
        if name == after
    ):
        return "regressions"
    wrong = any(name == exported and not answer_ok for (name, _), answer_ok in right.items())
    return "failures" if wrong else "others"


def by_checkpoint(
    answers: Sequence[ProblemCompletions], completions: Mapping[str, Sequence[GradedCompletion]]
) -> dict[str, list[GradedCompletion]]:
    """The rows of `answers` in the order of `completions`."""
    kept = {id(row) for each in answers for row in each.rows}
    return {name: [row for row in rows if id(row) in kept] for name, rows in completions.items()}


def count_kinds(answers: Sequence[ProblemCompletions]) -> dict[str, int]:
    """Completions of each kind."""
    counts: Counter[str] = Counter()
    for each in answers:
        counts[each.kind] += len(each.rows)
    return {kind: counts[kind] for kind in KINDS}


def ranked_rollouts(rollouts: Sequence[TrainingRollout]) -> list[list[TrainingRollout]]:
    """Rollouts by problem, those first that came up at the most steps."""
    together: dict[str, list[TrainingRollout]] = defaultdict(list)
    for rollout in rollouts:
        together[rollout.problem].append(rollout)

    def rank(rows: Sequence[TrainingRollout]) -> tuple[int, bytes]:
        return -len({row.step for row in rows}), _spread(rows[0].problem)

    return sorted(together.values(), key=rank)


def fit(
    items: Sequence[Item],
    pack: Callable[[Sequence[Item]], Blocks],
    *,
    budget: int,
    length: Callable[[Item], int],
) -> tuple[Sequence[Item], Blocks]:
    """As many of the first items as `budget` bytes hold, and their blocks.

    Args:
        length: characters of an item, of which there is no use in compressing too many.
    """
    left, count = budget * COMPRESSION, 0
    while count < len(items) and (left := left - length(items[count])) > 0:
        count += 1
    while True:
        blocks = pack(items[:count])
        size = sum(map(len, blocks.values()))
        if size <= budget or not count:
            return items[:count], blocks
        count = int(count * min(0.95, budget / size))


def _spread(*key: object) -> bytes:
    """An order that has nothing to do with that of the file."""
    return hashlib.sha256("/".join(map(str, key)).encode("utf-8", "replace")).digest()
