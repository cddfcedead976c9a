"""How many rows to take of each source, and which."""

import math
from collections.abc import Sequence
from typing import Literal

from lib.problems.splits import position
from lib.problems.store import ProblemTable

ALL: Literal["all"] = "all"
Weight = float | Literal["all"]
Limit = int | Literal["all"]


def mixture_counts(
    available: Sequence[int], weights: Sequence[Weight], *, limit: Limit
) -> list[int]:
    """Rows to take of each source.

    Sources with a weight stand in the ratio of their weights, none is used twice, and together they
    are as many as that allows. A source of weight "all" gives every row. A limit scales all of them
    down in proportion, to exactly that many rows.

    Args:
        available: rows of each source.
        weights: a number above 0, or "all", for each source.
        limit: rows in all; "all" for as many as there are.
    """
    ratio = [
        count / weight
        for count, weight in zip(available, weights, strict=True)
        if not isinstance(weight, str)
    ]
    unit = min(ratio, default=0.0)
    counts = [
        count if isinstance(weight, str) else min(count, math.floor(unit * weight + 1e-9))
        for count, weight in zip(available, weights, strict=True)
    ]
    total = sum(counts)
    return counts if limit == ALL or limit >= total else _scale(counts, limit)


def _scale(counts: Sequence[int], limit: int) -> list[int]:
    """`counts` in proportion, adding up to `limit`: largest remainders are rounded up."""
    total = sum(counts)
    scaled = [count * limit // total for count in counts]
    remainders = sorted(
        range(len(counts)), key=lambda index: (-(counts[index] * limit % total), index)
    )
    for index in remainders[: limit - sum(scaled)]:
        scaled[index] += 1
    return scaled


def draw(table: ProblemTable, count: int, *, seed: int) -> ProblemTable:
    """`count` of the problems, chosen by content hash, in the order they were in.

    A smaller count takes a part of what a larger one takes.
    """
    if count >= len(table):
        return table
    places = [position(problem_id, salt=f"draw:{seed}") for problem_id in table.column("id")]
    chosen = sorted(range(len(places)), key=lambda index: (places[index], index))[:count]
    return table.select(sorted(chosen))
