"""Subsets of the real line: intervals, unions, inequalities, in one canonical form."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from lib.verifier.evaluate import approximate, exact_value, free_symbols
from lib.verifier.named import is_name, spelling
from lib.verifier.numbers import Undefined
from lib.verifier.scalars import same_scalar
from lib.verifier.tree import Node, TooHard, negated, number


class Piece(NamedTuple):
    """An interval between two constants, each end closed or open; a point has equal ends."""

    low: float
    low_closed: bool
    high: float
    high_closed: bool
    low_node: Node | None = None
    high_node: Node | None = None


class RealSet(NamedTuple):
    """Disjoint pieces in ascending order, and the name of the variable, '' where none is given."""

    pieces: tuple[Piece, ...]
    name: str = ""


LINE = Piece(-math.inf, False, math.inf, False)
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}


def real_set(node: Node) -> RealSet | None:
    """The set that `node` describes, None where it is not a set of reals with constant ends."""
    rule = _RULES.get(node.kind)
    try:
        return None if rule is None else rule(node)
    except (TooHard, Undefined):
        return None


def same_set(reference: RealSet, answer: RealSet) -> bool:
    """Whether two sets have the same elements; names must agree where both are given."""
    if reference.name and answer.name and reference.name != answer.name:
        return False
    if len(reference.pieces) != len(answer.pieces):
        return False
    return all(map(_same_piece, reference.pieces, answer.pieces))


def _same_piece(reference: Piece, answer: Piece) -> bool:
    closed = (reference.low_closed, reference.high_closed)
    if closed != (answer.low_closed, answer.high_closed):
        return False
    return _same_end(reference.low, reference.low_node, answer.low, answer.low_node) and _same_end(
        reference.high, reference.high_node, answer.high, answer.high_node
    )


def _same_end(right: float, right_node: Node | None, given: float, given_node: Node | None) -> bool:
    if right_node is None or given_node is None:
        return right == given
    return same_scalar(right_node, given_node)[0]


def _end(node: Node) -> tuple[float, Node | None]:
    """Position of an end; infinite ends have no node."""
    names = free_symbols(node)
    if names == {"infinity"}:
        negative = node.kind != "symbol" and exact_value(node, {"infinity": Fraction(1)}) == -1
        return (-math.inf if negative else math.inf), None
    if names:
        raise Undefined("an end with a symbol")
    value = approximate(node.args[0] if node.kind in ("degree", "unit") else node)
    if abs(value.imag) > 1e-12 * (abs(value) or 1):
        raise Undefined("a complex end")
    return value.real, node


def _interval(node: Node) -> RealSet | None:
    if len(node.args) != 2 or node.name not in ("()", "[]", "(]", "[)"):
        return None
    (low, low_node), (high, high_node) = _end(node.args[0]), _end(node.args[1])
    piece = Piece(
        low,
        node.name[0] == "[" and low_node is not None,
        high,
        node.name[1] == "]" and high_node is not None,
        low_node,
        high_node,
    )
    return RealSet((piece,)) if low <= high else None


def _points(node: Node) -> RealSet | None:
    ends = [_end(item) for item in node.args]
    if any(end is None for _, end in ends):
        return None
    return RealSet(_merged([Piece(at, True, at, True, end, end) for at, end in ends]))


def _symbol(node: Node) -> RealSet | None:
    return RealSet((LINE,)) if node.name == "reals" else None


def _union(node: Node) -> RealSet | None:
    return _combined(node, lambda left, right: _merged([*left, *right]))


def _intersection(node: Node) -> RealSet | None:
    return _combined(node, _common)


def _difference(node: Node) -> RealSet | None:
    return _combined(node, lambda left, right: _common(left, _complement(right)))


Pieces = tuple[Piece, ...]


def _combined(node: Node, combine: Callable[[Pieces, Pieces], Pieces]) -> RealSet | None:
    left, right = (real_set(part) for part in node.args)
    if left is None or right is None:
        return None
    return RealSet(combine(left.pieces, right.pieces), left.name or right.name)


def _merged(pieces: list[Piece]) -> Pieces:
    """Sorted, with pieces joined that overlap or touch."""
    merged: list[Piece] = []
    for piece in sorted(pieces, key=lambda item: (item.low, not item.low_closed)):
        last = merged[-1] if merged else None
        touches = last is not None and (
            piece.low < last.high
            or (piece.low == last.high and (piece.low_closed or last.high_closed))
        )
        if last is None or not touches:
            merged.append(piece)
        elif (piece.high, piece.high_closed) > (last.high, last.high_closed):
            merged[-1] = last._replace(
                high=piece.high, high_closed=piece.high_closed, high_node=piece.high_node
            )
    return tuple(merged)


def _common(left: Pieces, right: Pieces) -> Pieces:
    found = []
    for one in left:
        for two in right:
            lower = max(one, two, key=lambda piece: (piece.low, not piece.low_closed))
            upper = min(one, two, key=lambda piece: (piece.high, piece.high_closed))
            closed = lower.low_closed and upper.high_closed
            if lower.low < upper.high or (lower.low == upper.high and closed):
                found.append(
                    lower._replace(
                        high=upper.high, high_closed=upper.high_closed, high_node=upper.high_node
                    )
                )
    return _merged(found)


def _complement(pieces: Pieces) -> Pieces:
    gaps, low, closed, low_node = [], -math.inf, False, None
    for piece in pieces:
        if low < piece.low or (low == piece.low and closed and not piece.low_closed):
            gaps.append(
                Piece(low, closed, piece.low, not piece.low_closed, low_node, piece.low_node)
            )
        low, closed, low_node = piece.high, not piece.high_closed, piece.high_node
    if low < math.inf:
        gaps.append(Piece(low, closed, math.inf, False, low_node, None))
    return tuple(gaps)


def _relation(node: Node) -> RealSet | None:
    """A chain of inequalities in one variable, each of them linear in it."""
    operators = node.name.split(" ")
    if operators == ["in"] and is_name(node.args[0]):
        inside = real_set(node.args[1])
        return inside and inside._replace(name=spelling(node.args[0]))
    if any(operator not in _FLIPPED for operator in operators):
        return None
    found: RealSet | None = None
    for left, operator, right in zip(node.args, operators, node.args[1:], strict=False):
        part = _inequality(left, operator, right)
        if part is None or (found and found.name != part.name):
            return None
        found = RealSet(_common(found.pieces, part.pieces), part.name) if found else part
    return found


def _inequality(left: Node, operator: str, right: Node) -> RealSet | None:
    if is_name(left) and not free_symbols(right) - {"infinity"}:
        return RealSet(_ray(operator, right), spelling(left))
    if is_name(right) and not free_symbols(left) - {"infinity"}:
        return RealSet(_ray(_FLIPPED[operator], left), spelling(right))
    if left.kind == "call" and left.name == "abs" and not free_symbols(right):
        return _within(left.args[0], operator, right)
    names = free_symbols(left) | free_symbols(right)
    if len(names) != 1:
        return None
    (name,) = names
    at = [_difference_at(left, right, {name: Fraction(value)}) for value in (0, 1, 2)]
    if None in at:
        return None
    zero, one, two = (value for value in at if value is not None)
    slope = one - zero
    if not slope or two - one != slope:
        return None
    operator = operator if slope > 0 else _FLIPPED[operator]
    return RealSet(_ray(operator, number(-zero / slope)), f"symbol:{name}")


def _within(inside: Node, operator: str, bound: Node) -> RealSet | None:
    """`|f| < c` as −c < f < c, and `|f| > c` as what is left."""
    above = _inequality(inside, operator, bound)
    below = _inequality(inside, _FLIPPED[operator], negated(bound))
    if above is None or below is None:
        return None
    if operator in ("<", "<=", "!="):
        return above._replace(pieces=_common(above.pieces, below.pieces))
    return above._replace(pieces=_merged([*above.pieces, *below.pieces]))


def _difference_at(left: Node, right: Node, bindings: dict[str, Fraction]) -> Fraction | None:
    one, two = exact_value(left, bindings), exact_value(right, bindings)
    return None if one is None or two is None else one - two


def _ray(operator: str, end: Node) -> Pieces:
    """The reals that stand in this relation to `end`."""
    at, node = _end(end)
    closed = operator in ("<=", ">=") and node is not None
    below = Piece(-math.inf, False, at, closed, None, node)
    above = Piece(at, closed, math.inf, False, node, None)
    if operator == "!=":
        return (below, above)
    return (below,) if operator in ("<", "<=") else (above,)


def _builder(node: Node) -> RealSet | None:
    return real_set(node.args[1])


def _list(node: Node) -> RealSet | None:
    """Inequalities that hold together, or, where no number satisfies all, one at a time."""
    if not all(item.kind == "relation" for item in node.args):
        return None
    sets = [real_set(item) for item in node.args]
    known = [found for found in sets if found is not None]
    if len(known) < len(sets) or len({found.name for found in known}) != 1:
        return None
    common: Pieces = (LINE,)
    for found in known:
        common = _common(common, found.pieces)
    if node.name == "or" or not common:
        common = _merged([piece for found in known for piece in found.pieces])
    return RealSet(common, known[0].name)


_RULES: dict[str, Callable[[Node], RealSet | None]] = {
    "tuple": _interval,
    "set": _points,
    "symbol": _symbol,
    "union": _union,
    "intersection": _intersection,
    "difference": _difference,
    "relation": _relation,
    "builder": _builder,
    "list": _list,
}
