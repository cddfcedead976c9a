"""Training and validation, and which rows of each source: all by content hash.

Which side a problem is on, and whether it is drawn, depends on its words only: adding rows moves
none of the others, and the same problem in two sets is on the same side in both.
"""

import math
from collections.abc import Sequence
from typing import Literal

from lib.params.data import Ingredient
from lib.problems.filters import digest
from lib.problems.store import ProblemTable, join


def position(problem_id: str, *, salt: str) -> float:
    """A place in [0, 1) that `problem_id` has for this purpose; even over all problems."""
    return digest(f"{salt}:{problem_id}") / 2**64


def split(table: ProblemTable, *, share: float) -> tuple[ProblemTable, ProblemTable]:
    """What is trained on, and the `share` that is held back; a larger share only adds to that."""
    sides: dict[bool, list[int]] = {False: [], True: []}
    for index, problem_id in enumerate(table.column("id")):
        sides[position(problem_id, salt="validation") < share].append(index)
    return table.select(sides[False]), table.select(sides[True])


def mix(
    table: ProblemTable,
    ingredients: Sequence[Ingredient],
    *,
    limit: int | Literal["all"],
    seed: int,
) -> ProblemTable:
    """The rows to take of each source, source by source; what stays is counted as `not_drawn`."""
    rows_of: list[list[int]] = [[] for _ in ingredients]
    for index, source in enumerate(table.column("source")):
        rows_of[source].append(index)
    weights = [ingredient.weight for ingredient in ingredients]
    counts = mixture_counts([len(rows) for rows in rows_of], weights, limit=limit)
    mixed = join(
        [
            draw(table.select(rows), count, seed=seed)
            for rows, count in zip(rows_of, counts, strict=True)
        ]
    )
    table.drops.count("not_drawn", len(table) - len(mixed))
    return mixed


def mixture_counts(
    available: Sequence[int],
    weights: Sequence[float | Literal["all"]],
    *,
    limit: int | Literal["all"],
) -> list[int]:
    """Rows to take of each source.

    Sources with a weight are taken in the ratio of their weights, none is used twice, and together
    they are as many as that allows. A source of weight "all" gives every row. A limit scales all of
    them down in proportion, to exactly that many rows: the largest remainders are rounded up.

    Args:
        available: rows of each source.
        weights: a number above 0, or "all", for each source.
        limit: rows in all; "all" for as many as there are.
    """
    pairs = list(zip(available, weights, strict=True))
    unit = min((count / weight for count, weight in pairs if weight != "all"), default=0.0)
    counts = [
        # 1e-9: a third of 300 must not become 99 by rounding.
        count if weight == "all" else min(count, math.floor(unit * weight + 1e-9))
        for count, weight in pairs
    ]
    total = sum(counts)
    if limit == "all" or limit >= total:
        return counts
    scaled = [count * limit // total for count in counts]
    remainders = sorted(
        range(len(counts)), key=lambda index: (-(counts[index] * limit % total), index)
    )
    for index in remainders[: limit - sum(scaled)]:
        scaled[index] += 1
    return scaled


def draw(table: ProblemTable, count: int, *, seed: int) -> ProblemTable:
    """`count` of the problems, selected by content hash, in the order they were in.

    A smaller count takes a part of what a larger one takes.
    """
    places = [position(problem_id, salt=f"draw:{seed}") for problem_id in table.column("id")]
    nearest = sorted(range(len(places)), key=places.__getitem__)[:count]
    return table.select(sorted(nearest))
