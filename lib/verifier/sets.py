"""Subsets of the real line: intervals, unions, inequalities, in one canonical form."""

import functools
import math
import operator
from collections.abc import Callable
from typing import NamedTuple

from lib.verifier.evaluate import exact_value, real_value
from lib.verifier.tree import (
    Node,
    TooHard,
    Undecided,
    canonical,
    free_symbols,
    is_name,
    number,
    spelling,
    substituted,
    symbol,
)

Cut = tuple[float, bool]
"""A place where a set begins or ends, in units of `_FINEST`; and whether just after the number.

`[a` begins before a, `(a` after it; `b]` ends after b, `b)` before it.
"""

_FINEST = 10**30
"""Ends are told apart to so many parts of one, which is less than an irrational one is off by."""

Cuts = tuple[Cut, ...]
"""In ascending order, beginnings and ends in turn."""


class RealSet(NamedTuple):
    """A set, and the name of the variable that it constrains, '' where there is none."""

    cuts: Cuts
    name: str = ""


_LINE: Cuts = ((-math.inf, False), (math.inf, False))
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!=", "=": "="}
REALS = symbol("reals")


def real_set(node: Node) -> RealSet | None:
    """The set that `node` describes, None where it is not a set of reals with constant ends."""
    rule = _RULES.get(node.kind)
    try:
        return None if rule is None else rule(node)
    except (TooHard, Undecided):
        return None


def same_set(reference: RealSet, answer: RealSet) -> bool:
    """Whether two sets have the same elements; names must agree where both have one."""
    if reference.name and answer.name and reference.name != answer.name:
        return False
    return reference.cuts == answer.cuts


def _cut(node: Node, after: bool) -> Cut:
    """A cut at a constant; nothing is after an infinite one."""
    names = free_symbols(node)
    if names == {"infinity"}:
        sign = exact_value(substituted(node, {"infinity": number(1)}))
        if sign not in (1, -1):
            raise Undecided("an end that is no number")
        return _LINE[sign == 1]
    if names:
        raise Undecided("an end with a symbol")
    value = real_value(node)
    if value is None:
        raise Undecided("an end that is no number")
    return round(value * _FINEST), after


def _combined(keep: Callable[[bool, bool], bool], left: Cuts, right: Cuts) -> Cuts:
    """The cuts of what `keep` wants, told whether a number is in the one and in the other."""
    cuts: list[Cut] = []
    inside = [False, False]
    for cut in sorted({*left, *right}):
        inside = [now ^ (cut in side) for now, side in zip(inside, (left, right), strict=True)]
        if keep(*inside) != bool(len(cuts) % 2):
            cuts.append(cut)
    return tuple(cuts)


_union = functools.partial(_combined, operator.or_)
_intersection = functools.partial(_combined, operator.and_)
_difference = functools.partial(_combined, operator.gt)


def _operation(combine: Callable[[Cuts, Cuts], Cuts]) -> Callable[[Node], RealSet | None]:
    return lambda node: _together([*map(real_set, node.args)], combine)


def _interval(node: Node) -> RealSet | None:
    """Two rays in common; what has no number in it is a point."""
    if len(node.args) != 2 or node.name not in ("()", "[]", "(]", "[)"):
        return None
    above, below = (">" if node.name[0] == "(" else ">="), ("<" if node.name[1] == ")" else "<=")
    cuts = _intersection(_ray(above, node.args[0]), _ray(below, node.args[1]))
    return RealSet(cuts) if cuts else None


def _points(node: Node) -> RealSet | None:
    points = [_ray("=", item) for item in node.args]
    return RealSet(functools.reduce(_union, points, ())) if all(points) else None


def _symbol(node: Node) -> RealSet | None:
    return RealSet(_LINE) if node == REALS else None


def _relation(node: Node) -> RealSet | None:
    """A chain of inequalities in one variable, each of them linear in it."""
    comparisons = node.name.split(" ")
    if comparisons == ["in"] and is_name(node.args[0]):
        inside = real_set(REALS if node.args[1] == symbol("R") else node.args[1])
        return inside and inside._replace(name=spelling(node.args[0]))
    if any(comparison not in _FLIPPED for comparison in comparisons):
        return None
    parts = [
        _inequality(left, comparison, right)
        for left, comparison, right in zip(node.args, comparisons, node.args[1:], strict=False)
    ]
    return _together(parts, _intersection)


def _together(parts: list[RealSet | None], combine: Callable[[Cuts, Cuts], Cuts]) -> RealSet | None:
    """Sets of one variable, which one of them may leave unsaid, as one set."""
    known = [part for part in parts if part is not None]
    names = {part.name for part in known} - {""}
    if len(known) < len(parts) or len(names) > 1:
        return None
    return RealSet(functools.reduce(combine, (part.cuts for part in known)), "".join(names))


def _inequality(left: Node, comparison: str, right: Node) -> RealSet | None:
    for term, sign, end in ((left, comparison, right), (right, _FLIPPED[comparison], left)):
        if free_symbols(end) - {"infinity"}:
            continue
        if is_name(term):
            return RealSet(_ray(sign, end), canonical(term))
    return None


def _ray(comparison: str, end: Node) -> Cuts:
    """The reals that are in this relation to `end`."""
    before, after = _cut(end, False), _cut(end, True)
    if comparison in ("=", "!="):
        return (before, after) if comparison == "=" else _difference(_LINE, (before, after))
    if comparison in ("<", "<="):
        return (_LINE[0], after if comparison == "<=" else before)
    return (before if comparison == ">=" else after, _LINE[1])


def _builder(node: Node) -> RealSet | None:
    """What satisfies the condition, where the variable is a real number; its name is bound."""
    variable, condition = node.args
    if variable.kind == "relation" and (variable.name != "in" or variable.args[1] != REALS):
        return None
    inside = real_set(condition)
    return inside and RealSet(inside.cuts)


def _list(node: Node) -> RealSet | None:
    """Inequalities that hold together, or, where no number satisfies all, one at a time."""
    if not all(item.kind == "relation" for item in node.args):
        return None
    parts = [real_set(item) for item in node.args]
    common = None if node.name == "or" else _together(parts, _intersection)
    return common if common and common.cuts else _together(parts, _union)


_RULES: dict[str, Callable[[Node], RealSet | None]] = {
    "tuple": _interval,
    "set": _points,
    "symbol": _symbol,
    "union": _operation(_union),
    "intersection": _operation(_intersection),
    "difference": _operation(_difference),
    "relation": _relation,
    "builder": _builder,
    "list": _list,
}
