"""Work limits: what is beyond them is not equal to anything but its own text.

All are counts, none is a clock, so that a slow machine grades like a fast one. A reference of a
public set stays below a tenth of each.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


MAX_ANSWER_CHARS = 4_000
"""Longer answers are compared as text only."""

MAX_COMPLETION_CHARS = 2_000_000
"""Longer completions are searched in their last part only."""

MAX_REMEMBERED_CHARS = 200_000
"""Characters of answers after which what was worked out of them is forgotten."""

MAX_TOKENS = 1_500
"""Tokens of one answer that are parsed."""

MAX_DEPTH = 60
"""Nesting of groups, fractions and powers."""

MAX_ITEMS = 400
"""Elements of one list, set or tuple, after ± is spelled out."""

MAX_DIGITS = 1_500
"""Digits of one number literal."""

MAX_BITS = 100_000
"""Bits of numerator or denominator of an exact value."""

MAX_POINT_BITS = 2_000
"""Bits up to which a value stays exact where functions are compared at a point."""

MAX_LOG2 = 3_000.0
"""Magnitude, as a power of two, of an inexact value: beyond it (or its inverse) undecided."""

MAX_FACTORIAL = 5_000
"""Largest n of an exact n!."""

MAX_SUM_TERMS = 500
"""Terms of a finite sum or product that are added up."""

MAX_OPERATIONS = 4_000
"""Nodes that one comparison evaluates, all points together."""

MAX_SYMBOLIC_NODES = 120
"""Nodes of a question that sympy gets to see."""

MAX_SYMBOLIC_EXPONENT = 100
"""Largest exponent and factorial that sympy gets to see."""

MAX_INTEGRAND_NESTING = 1
"""Functions and roots inside one another under an integral."""

MAX_CALCULUS = 3
"""Sums, limits and integrals in one question to sympy."""


_caches: list["functools._lru_cache_wrapper[Any]"] = []
_remembered_chars = 0


def remembered(
    maxsize: int,
) -> Callable[[Callable[..., T]], "functools._lru_cache_wrapper[T]"]:
    """`functools.lru_cache`, emptied by `bound_memory` too: a cache counts entries, not texts."""

    def wrap(function: Callable[..., T]) -> "functools._lru_cache_wrapper[T]":
        _caches.append(cached := functools.lru_cache(maxsize)(function))
        return cached

    return wrap


def bound_memory(num_chars: int) -> None:
    """Empty every cache once the texts behind them are too many; `num_chars` are new."""
    global _remembered_chars
    _remembered_chars += num_chars
    if _remembered_chars > MAX_REMEMBERED_CHARS:
        _remembered_chars = num_chars
        for cached in _caches:
            cached.cache_clear()
