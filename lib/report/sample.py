"""Which completions the page holds: all where they fit, else what a reader looks for first.

A page of any run stays within a few megabytes, so that it opens at once and can be sent; every
completion is in the stages' JSONL files.
"""

import dataclasses
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
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
class Answers:
    """One problem in one mode, one sample: what each checkpoint answered."""

    kind: str
    rows: Mapping[str, GradedCompletion]


def ranked_answers(
    completions: Mapping[str, Sequence[GradedCompletion]], *, exported: str
) -> list[Answers]:
    """Regressions, failures of `exported`, others; in each, greedy before sampled, then spread.

    Args:
        completions: by checkpoint, in the order of training.
        exported: the checkpoint whose failures count.
    """
    together: dict[tuple[str, str, str, int], dict[str, GradedCompletion]] = defaultdict(dict)
    for name, rows in completions.items():
        for row in rows:
            together[row.benchmark, row.problem_id, row.mode, row.sample][name] = row
    kinds = {key: _kind(rows, exported) for key, rows in together.items()}

    def rank(key: tuple[str, str, str, int]) -> tuple[int, bool, bytes]:
        return KINDS.index(kinds[key]), key[2] != GREEDY, _spread(*key)

    return [Answers(kind=kinds[key], rows=together[key]) for key in sorted(together, key=rank)]


def _kind(rows: Mapping[str, GradedCompletion], exported: str) -> str:
    if any(one.answer_ok and not other.answer_ok for one, other in pairwise(rows.values())):
        return "regressions"
    wrong = exported in rows and not rows[exported].answer_ok
    return "failures" if wrong else "others"


def by_checkpoint(
    answers: Sequence[Answers], completions: Mapping[str, Sequence[GradedCompletion]]
) -> dict[str, list[GradedCompletion]]:
    """The rows of `answers` in the order of `completions`."""
    kept = {id(row) for each in answers for row in each.rows.values()}
    return {name: [row for row in rows if id(row) in kept] for name, rows in completions.items()}


def count_kinds(answers: Sequence[Answers]) -> dict[str, int]:
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
