"""Subsets of the real line: intervals, unions, inequalities, in one canonical form."""

import functools
import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from lib.verifier.evaluate import approximate, exact_value, free_symbols
from lib.verifier.named import is_name, spelling
from lib.verifier.numbers import Undefined
from lib.verifier.scalars import same_scalar
from lib.verifier.tree import MINUS_ONE, Node, TooHard, negated, number


class Cut(NamedTuple):
    """A place where a set begins or ends: just before or just after a number.

    `[a` begins before a, `(a` after it; `b]` ends after b, `b)` before it.
    """

    at: float
    after: bool
    node: Node | None = None


Cuts = tuple[Cut, ...]
"""In ascending order, beginnings and ends in turn."""


class RealSet(NamedTuple):
    """A set, and the name of the variable that it constrains, '' where there is none."""

    cuts: Cuts
    name: str = ""


_LINE = (Cut(-math.inf, False), Cut(math.inf, False))
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!=", "=": "="}
_REALS = Node("symbol", (), "reals")


def real_set(node: Node) -> RealSet | None:
    """The set that `node` describes, None where it is not a set of reals with constant ends."""
    rule = _RULES.get(node.kind)
    try:
        return None if rule is None else rule(node)
    except (TooHard, Undefined):
        return None


def same_set(reference: RealSet, answer: RealSet) -> bool:
    """Whether two sets have the same elements; names must agree where both have one."""
    if reference.name and answer.name and reference.name != answer.name:
        return False
    return len(reference.cuts) == len(answer.cuts) and all(
        map(_same_cut, reference.cuts, answer.cuts)
    )


def _same_cut(reference: Cut, answer: Cut) -> bool:
    if reference.node is None or answer.node is None or reference.after != answer.after:
        return reference[:2] == answer[:2]
    return same_scalar(reference.node, answer.node)[0]


def _cut(node: Node, after: bool) -> Cut:
    """A cut at a constant; the infinite ones have no node, and nothing after them."""
    names = free_symbols(node)
    if names == {"infinity"}:
        sign = exact_value(node, {"infinity": Fraction(1)})
        if sign not in (1, -1):
            raise Undefined("an end that is no number")
        return _LINE[sign == 1]
    if names:
        raise Undefined("an end with a symbol")
    value = approximate(node.args[0] if node.kind in ("degree", "unit") else node)
    if abs(value.imag) > 1e-12 * (abs(value) or 1):
        raise Undefined("a complex end")
    # Rounded, so that two spellings of an irrational end are one cut.
    return Cut(float(f"{value.real:.12g}"), after, node)


def _combined(keep: Callable[[bool, bool], bool], left: Cuts, right: Cuts) -> Cuts:
    """The cuts of what `keep` wants, told whether a number is in the one and in the other."""
    cuts: list[Cut] = []
    sides = [{cut[:2] for cut in side} for side in (left, right)]
    inside = [False, False]
    for key, cut in sorted({cut[:2]: cut for cut in (*left, *right)}.items()):
        inside = [now ^ (key in side) for now, side in zip(inside, sides, strict=True)]
        if keep(*inside) != bool(len(cuts) % 2):
            cuts.append(cut)
    return tuple(cuts)


_union = functools.partial(_combined, operator.or_)
_intersection = functools.partial(_combined, operator.and_)
_difference = functools.partial(_combined, operator.gt)


def _operation(combine: Callable[[Cuts, Cuts], Cuts]) -> Callable[[Node], RealSet | None]:
    def apply(node: Node) -> RealSet | None:
        left, right = map(real_set, node.args)
        return left and right and RealSet(combine(left.cuts, right.cuts), left.name or right.name)

    return apply


def _interval(node: Node) -> RealSet | None:
    if len(node.args) != 2 or node.name not in ("()", "[]", "(]", "[)"):
        return None
    low, high = _cut(node.args[0], node.name[0] == "("), _cut(node.args[1], node.name[1] == "]")
    return RealSet((low, high)) if low.at < high.at or low[:2] < high[:2] else None


def _points(node: Node) -> RealSet | None:
    cuts: Cuts = ()
    for item in node.args:
        if not _cut(item, False).node:
            return None
        cuts = _union(cuts, (_cut(item, False), _cut(item, True)))
    return RealSet(cuts)


def _symbol(node: Node) -> RealSet | None:
    return RealSet(_LINE) if node == _REALS else None


def _sum(node: Node) -> RealSet | None:
    r"""`\\mathbb{R} - \\{1\\}`: a minus between sets is their difference."""
    minus = node.args[-1]
    if len(node.args) != 2 or minus.kind != "product" or minus.args[0] != MINUS_ONE:
        return None
    if node.args[0].kind == "number" or len(minus.args) != 2:
        return None
    return _RULES["difference"](Node("difference", (node.args[0], minus.args[1])))


def _relation(node: Node) -> RealSet | None:
    """A chain of inequalities in one variable, each of them linear in it."""
    comparisons = node.name.split(" ")
    if comparisons == ["in"] and is_name(node.args[0]):
        inside = real_set(_REALS if node.args[1] == Node("symbol", (), "R") else node.args[1])
        return inside and inside._replace(name=spelling(node.args[0]))
    if any(comparison not in _FLIPPED for comparison in comparisons):
        return None
    parts = [
        _inequality(left, comparison, right)
        for left, comparison, right in zip(node.args, comparisons, node.args[1:], strict=False)
    ]
    return _together(parts, _intersection)


def _together(parts: list[RealSet | None], combine: Callable[[Cuts, Cuts], Cuts]) -> RealSet | None:
    """Sets of one variable as one set."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or len({part.name for part in known}) != 1:
        return None
    cuts = known[0].cuts
    for part in known[1:]:
        cuts = combine(cuts, part.cuts)
    return RealSet(cuts, known[0].name)


def _inequality(left: Node, comparison: str, right: Node) -> RealSet | None:
    if is_name(left) and not free_symbols(right) - {"infinity"}:
        return RealSet(_ray(comparison, right), spelling(left))
    if is_name(right) and not free_symbols(left) - {"infinity"}:
        return RealSet(_ray(_FLIPPED[comparison], left), spelling(right))
    if left.kind == "call" and left.name == "abs" and not free_symbols(right):
        # |f| < c is −c < f < c, and |f| > c is what is left.
        parts = [_inequality(left.args[0], comparison, right)]
        parts.append(_inequality(left.args[0], _FLIPPED[comparison], negated(right)))
        return _together(parts, _intersection if comparison in ("<", "<=", "!=") else _union)
    names = free_symbols(left) | free_symbols(right)
    if len(names) != 1:
        return None
    (name,) = names
    residual = Node("sum", (left, negated(right)))
    at = [exact_value(residual, {name: Fraction(value)}) for value in (0, 1, 2)]
    if at[0] is None or at[1] is None or at[2] is None:
        return None
    slope = at[1] - at[0]
    if not slope or at[2] - at[1] != slope:
        return None
    comparison = comparison if slope > 0 else _FLIPPED[comparison]
    return RealSet(_ray(comparison, number(-at[0] / slope)), f"symbol:{name}")


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
    if variable.kind == "relation" and (variable.name != "in" or variable.args[1] != _REALS):
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
    "sum": _sum,
    "union": _operation(_union),
    "intersection": _operation(_intersection),
    "difference": _operation(_difference),
    "relation": _relation,
    "builder": _builder,
    "list": _list,
}
