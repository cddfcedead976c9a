"""Subsets of the real line: intervals, unions, inequalities, in one canonical form."""

import functools
import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from lib.verifier.evaluate import exact_value, real_value
from lib.verifier.identity import same_expression
from lib.verifier.tree import (
    REALS,
    Node,
    TooHard,
    Undecided,
    free_symbols,
    is_name,
    number,
    pairs,
    spelled,
    substituted,
)


class Cut(NamedTuple):
    """The beginning or end of a set, and whether it is just after the number.

    `[a` begins before a, `(a` after it; `b]` ends after b, `b)` before it. `place` orders the cuts;
    where it is not exact, `end` is what decides whether two are the same.
    """

    place: float | Fraction
    after: bool
    end: Node | None = None


Cuts = tuple[Cut, ...]
"""In ascending order, beginnings and ends in turn."""


class RealSet(NamedTuple):
    """A set, and the name of the variable that it constrains, '' where there is none."""

    cuts: Cuts
    name: str = ""


_LINE: Cuts = (Cut(-math.inf, False), Cut(math.inf, False))
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!=", "=": "="}


def real_set(node: Node) -> RealSet | None:
    """Return the set that `node` describes, or None if it is not a set of reals with constant
    ends.
    """
    rule = _RULES.get(node.kind)
    try:
        return None if rule is None else rule(node)
    except (TooHard, Undecided):
        return None


def same_set(reference: RealSet, answer: RealSet) -> bool:
    """Return True if two sets have the same elements; names must agree where both have one.

    Raises:
        Undecided, TooHard: an end is not equal for certain.
    """
    if reference.name and answer.name and reference.name != answer.name:
        return False
    pairs = list(zip(reference.cuts, answer.cuts, strict=False))
    return len(reference.cuts) == len(answer.cuts) and all(
        one[:2] == two[:2]
        and (one.end is None or two.end is None or same_expression(one.end, two.end).equal)
        for one, two in pairs
    )


def _cut(node: Node, after: bool) -> Cut:
    """Return a cut at a constant; nothing is after an infinite one."""
    names = free_symbols(node)
    if names == {"infinity"}:
        sign = exact_value(substituted(node, {"infinity": number(1)}))
        if sign not in (1, -1):
            raise Undecided("an end that is no number")
        return _LINE[sign == 1]
    if names:
        raise Undecided("an end with a symbol")
    exact = exact_value(node)
    if exact is not None:
        return Cut(exact, after)
    value = real_value(node)
    if value is None:
        raise Undecided("an end that is no number")
    return Cut(Fraction(round(value * 10**30), 10**30), after, node)


def _combined(keep: Callable[[bool, bool], bool], left: Cuts, right: Cuts) -> Cuts:
    """Return the cuts of what `keep` wants, told whether a number is in the one and in the
    other.
    """
    cuts: list[Cut] = []
    inside = [False, False]
    places = {cut[:2]: cut for cut in (*left, *right)}
    sides = [{cut[:2] for cut in side} for side in (left, right)]
    for place in sorted(places):
        inside = [now ^ (place in side) for now, side in zip(inside, sides, strict=True)]
        if keep(*inside) != bool(len(cuts) % 2):
            cuts.append(places[place])
    return tuple(cuts)


_union = functools.partial(_combined, operator.or_)
_intersection = functools.partial(_combined, operator.and_)
_difference = functools.partial(_combined, operator.gt)


def _operation(combine: Callable[[Cuts, Cuts], Cuts]) -> Callable[[Node], RealSet | None]:
    return lambda node: _together([*map(real_set, node.args)], combine)


def _interval(node: Node) -> RealSet | None:
    """Intersect two rays; an empty result is a point."""
    if len(node.args) != 2 or node.name not in ("()", "[]", "(]", "[)"):
        return None
    above, below = (">" if node.name[0] == "(" else ">="), ("<" if node.name[1] == ")" else "<=")
    cuts = _intersection(_ray(above, node.args[0]), _ray(below, node.args[1]))
    return RealSet(cuts) if cuts else None


def _points(node: Node) -> RealSet | None:
    points = [_ray("=", item) for item in node.args]
    return RealSet(functools.reduce(_union, points, ())) if all(points) else None


_HALVES = pairs("^+=> _+=> _>0=> ^-=< _-=< _<0=< _ge0=>= ^+_0=>= _le0=<=")


def _symbol(node: Node) -> RealSet | None:
    r"""Return the reals, `\mathbb{R}^+`, `\mathbb{R}_{<0}`."""
    if node == REALS:
        return RealSet(_LINE)
    sign = _HALVES.get(node.name.removeprefix("bb:R")) if node.name.startswith("bb:R") else None
    return RealSet(_ray(sign, number(0))) if sign else None


def _relation(node: Node) -> RealSet | None:
    """Return a chain of inequalities in one variable, each of them linear in it."""
    comparisons = node.name.split(" ")
    if comparisons == ["in"] and is_name(node.args[0]):
        inside = real_set(node.args[1])
        return inside and inside._replace(name=spelled(node.args[0]))
    if any(comparison not in _FLIPPED for comparison in comparisons):
        return None
    parts = [
        _inequality(left, comparison, right)
        for left, comparison, right in zip(node.args, comparisons, node.args[1:], strict=False)
    ]
    return _together(parts, _intersection)


def _together(parts: list[RealSet | None], combine: Callable[[Cuts, Cuts], Cuts]) -> RealSet | None:
    """Join sets of one variable, whose name one of them may leave unsaid."""
    known = [part for part in parts if part is not None]
    names = {part.name for part in known} - {""}
    if len(known) < len(parts) or len(names) > 1:
        return None
    return RealSet(functools.reduce(combine, (part.cuts for part in known)), "".join(names))


def _inequality(left: Node, comparison: str, right: Node) -> RealSet | None:
    for term, sign, end in ((left, comparison, right), (right, _FLIPPED[comparison], left)):
        if free_symbols(end) - {"infinity"}:
            continue
        if term.kind == "call" and term.name == "abs" and is_name(term.args[0]):
            return _distance(spelled(term.args[0]), sign, end)
        if is_name(term):
            return RealSet(_ray(sign, end), spelled(term))
        if term.kind == "product" and term.args[0].value and len(term.args) == 2:
            # A negative factor turns the sign.
            times = term.args[0].value
            scaled = Node("product", (end, number(1 / times)))
            return _inequality(term.args[1], sign if times > 0 else _FLIPPED[sign], scaled)
    return None


def _distance(name: str, sign: str, end: Node) -> RealSet | None:
    r"""Return the set of `|x| < 3` or `|x| \ge 3`."""
    opposite = Node("product", (number(-1), end))
    if sign in ("<", "<="):
        return RealSet(_intersection(_ray(sign, end), _ray(_FLIPPED[sign], opposite)), name)
    if sign in (">", ">="):
        return RealSet(_union(_ray(sign, end), _ray(_FLIPPED[sign], opposite)), name)
    return None


def _ray(comparison: str, end: Node) -> Cuts:
    """Return the reals that are in this relation to `end`."""
    before, after = _cut(end, False), _cut(end, True)
    if before in _LINE and comparison not in ("<", ">"):
        raise Undecided("a closed end at infinity")
    if comparison in ("=", "!="):
        return (before, after) if comparison == "=" else _difference(_LINE, (before, after))
    if before == _LINE[0 if comparison == "<" else 1]:
        raise Undecided("nothing is beyond infinity")
    if comparison in ("<", "<="):
        return (_LINE[0], after if comparison == "<=" else before)
    return (before if comparison == ">=" else after, _LINE[1])


def _builder(node: Node) -> RealSet | None:
    """Return the solutions of the condition if the variable is a real number; its name is bound."""
    variable, condition = node.args
    if variable.kind == "relation":
        if variable.name != "in" or variable.args[1] != REALS:
            return None
        variable = variable.args[0]
    inside = real_set(condition)
    is_of_variable = inside is not None and inside.name in ("", spelled(variable))
    return RealSet(inside.cuts) if inside and is_of_variable else None


def _list(node: Node) -> RealSet | None:
    """Combine inequalities that hold together, or one at a time."""
    if not all(item.kind in ("relation", "list") for item in node.args):
        return None
    parts = [real_set(item) for item in node.args]
    return _together(parts, _union if node.name == "or" else _intersection)


def _quantified(node: Node) -> RealSet | None:
    """Return a statement about a real number."""
    statement, membership = node.args
    return real_set(statement) if membership.args[1] == REALS else None


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
    "quantified": _quantified,
}
