"""The number of rows of each source in a mixture; without `datasets`, for the plan too."""

import math
from collections.abc import Sequence
from typing import Literal


def mixture_counts(
    available: Sequence[int],
    weights: Sequence[float | Literal["all"]],
    *,
    limit: int | Literal["all"],
) -> list[int]:
    """Return the number of rows to take from each source.

    Available [300, 100], weights [1, 1] -> [100, 100]; weights [2, 1] -> [200, 100]; weights
    [2, 1] with limit 30 -> [20, 10].

    Weighted sources are mixed in the ratio of their weights, with as many rows as possible and no
    row twice. A source with weight "all" gives every row. A limit scales all counts down to exactly
    that many rows in total, by the largest-remainder method.

    Args:
        available: rows of each source.
        weights: a number above 0, or "all", for each source.
        limit: total number of rows; "all" for no limit.
    """
    pairs = list(zip(available, weights, strict=True))
    # Rows per unit of weight, as many as the source with the fewest rows for its weight allows.
    unit = min((count / weight for count, weight in pairs if weight != "all"), default=0.0)
    counts = [
        # 1e-9: a third of 300 must not become 99 by rounding.
        count if weight == "all" else min(count, math.floor(unit * weight + 1e-9))
        for count, weight in pairs
    ]
    total = sum(counts)
    if limit == "all" or limit >= total:
        return counts
    # Scaled by limit / total and rounded down. In integers: floats could lose or add a row.
    scaled = [count * limit // total for count in counts]
    # The rows still missing go to the sources with the largest remainders, one each. Of equal
    # remainders the earlier source is first, so that the result depends on params only.
    by_remainder = sorted(
        range(len(counts)), key=lambda index: (-(counts[index] * limit % total), index)
    )
    num_missing = limit - sum(scaled)
    for index in by_remainder[:num_missing]:
        scaled[index] += 1
    return scaled
