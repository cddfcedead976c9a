r"""Rules that compare sets of numbers, constraints, tuples, vectors and matrices.

A set of reals (`(0, 5)`, `0 < x < 5`, `\{x : x > 1\}`, unions of them) is compared as the sorted
tuple of its ends, `Cuts`. Each `compare_*` is a rule of `reckon_verifier.equivalence.RULES`: it
compares the trees of a reference and an answer, and returns None to leave them to the next rule.
"""

import functools
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import NamedTuple

from reckon_verifier.evaluate import constant, exact_value, real_value
from reckon_verifier.identity import Fingerprint, proportional, salt_of, same_expression
from reckon_verifier.rules import Comparer, Verdict
from reckon_verifier.tree import (
    INFINITY,
    REALS,
    Node,
    TooHard,
    Undecided,
    difference,
    free_symbols,
    is_name,
    names,
    negated,
    nodes,
    number,
    pairs,
    spelled,
)


class Cut(NamedTuple):
    """A begin or end of a set on the real line: just before a number, or just after it.

    `[a` begins before a, `(a` after it; `b]` ends after b, `b)` before it. Cuts sort by (place,
    after).

    Attributes:
        place: the number, or ±inf; rounded to 30 digits after the point if it is irrational.
        after: whether the cut is just after the number.
        end: the number's tree, to compare two cuts exactly; None for ±inf.
    """

    place: float | Fraction
    after: bool
    end: Node | None = None


Cuts = tuple[Cut, ...]
"""A set of reals: cuts in ascending order, in which beginnings and ends alternate.

(0, 1] has two cuts, after 0 and after 1; the empty set has none.
"""


class RealSet(NamedTuple):
    """A set of reals, with the name of its variable: "x" for `x > 3`, '' for an interval."""

    cuts: Cuts
    name: str = ""


_LINE: Cuts = (Cut(-math.inf, False), Cut(math.inf, False))
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!=", "=": "="}


def real_set(node: Node) -> RealSet | None:
    r"""Return the set of reals that `node` describes: `(0, 5)`, `x \ne 1`, `\mathbb{R} - \{0\}`.

    None if it is another kind of set, or its ends have letters or are too hard to evaluate.
    """
    try:
        return _real_set(node)
    except (TooHard, Undecided):
        return None


def _real_set(node: Node) -> RealSet | None:
    """Return the set of `real_set`, but raise `TooHard` or `Undecided` if an end has no value."""
    match node:
        case Node("symbol", name=name) if name.startswith("bb:R"):
            if node == REALS:
                return RealSet(_LINE)
            # `\mathbb{R}^+`, named "bb:R^+", is the half with x > 0, a ray.
            sign = _HALVES.get(name.removeprefix("bb:R"))
            return RealSet(_ray(sign, number(0))) if sign else None
        case Node("tuple", (low, high), "()" | "[]" | "(]" | "[)"):
            # (1, 0) is empty, and has no cuts.
            above, below = (
                f"{sign}=" if end in "[]" else sign
                for sign, end in zip("><", node.name, strict=True)
            )
            cuts = _intersection(_ray(above, low), _ray(below, high))
            return RealSet(cuts) if cuts else None
        # `\{1, 2\}` is the union of two points.
        case Node("set", items) if items:
            return RealSet(functools.reduce(_union, (_ray("=", item) for item in items)))
        case Node("union" | "intersection" | "difference" as kind, parts):
            return _together(map(real_set, parts), _COMBINATIONS[kind])
        # `x < 1 or x > 2` is a union, `x > 1, x < 2` an intersection.
        case Node("list", parts, joint) if all(part.kind in ("relation", "list") for part in parts):
            both = _together(map(real_set, parts), _union if joint == "or" else _intersection)
            # x < 1, x > 2 has no solution if the comma is "and", so that it is read as no set.
            return both if both and both.cuts else None
        case Node("builder", (variable, condition)):
            # `\{x \in \mathbb{R} : x > 0\}`: the variable is bound, so that the set has no name.
            if variable.kind == "relation" and variable.name == "in" and variable.args[1] == REALS:
                variable = variable.args[0]
            inside = real_set(condition)
            is_own = inside and inside.name in ("", spelled(variable))
            return RealSet(inside.cuts) if inside and is_own else None
        case Node("relation", (variable, domain), "in") if is_name(variable):
            inside = real_set(domain)
            return inside and inside._replace(name=spelled(variable))
        case Node("relation", sides, joined) if {*joined.split()} <= _FLIPPED.keys():
            links = zip(sides, joined.split(), sides[1:], strict=False)
            return _together((_inequality(*link) for link in links), _intersection)
    return None


def same_set(reference: RealSet, answer: RealSet) -> bool:
    """Return True if two sets have the same elements, and their variables not different names.

    x > 3 equals (3, ∞), which has no variable, but not y > 3.

    Raises:
        Undecided, TooHard: it cannot be decided whether two irrational ends are equal.
    """
    if reference.name and answer.name and reference.name != answer.name:
        return False
    # f'(x) > 3 is no set of x, nor is f^{-1}(x) > 3.
    if reference.name != answer.name and re.search("['^]", reference.name + answer.name):
        return False
    return len(reference.cuts) == len(answer.cuts) and all(
        one.after == two.after and _same_place(one, two)
        for one, two in zip(reference.cuts, answer.cuts, strict=True)
    )


def _same_place(one: Cut, two: Cut) -> bool:
    """Return True if two cuts are at the same number, exactly.

    Raises:
        Undecided, TooHard: see `same_expression`.
    """
    # A cut at ±∞ has no `end`, the tree of its number; its `place` is ±inf.
    if one.end is None or two.end is None:
        return one.place == two.place
    if one.end == two.end:
        return True
    # `place` is rounded if the number is irrational, so that at the same place the numbers
    # themselves are compared.
    return one.place == two.place and same_expression(one.end, two.end).equal


def _cut(node: Node, after: bool) -> Cut:
    """Return the cut just before or just after the number that a tree without symbols denotes.

    At ±∞ there is only one cut, whatever `after` is. The `place` of the cut is the number, rounded
    to 30 digits after the point if it is irrational.

    Raises:
        Undecided: the constant is no real number, or is not known to 30 digits.
    """
    # Only the sign itself: 2 − ∞ and 1/∞ are no ends.
    if node in (INFINITY, negated(INFINITY)):
        return _LINE[node == INFINITY]
    exact = exact_value(node)
    if exact is not None:
        return Cut(exact, after, node)
    value = real_value(node)
    # An error of more than 1e-31 might change the rounded digits.
    if value is None or constant(node).radius * 10**31 > 1:
        raise Undecided("an end that is no number, or none that is certain")
    return Cut(Fraction(round(value * 10**30), 10**30), after, node)


def _combined(keep: Callable[[bool, bool], bool], left: Cuts, right: Cuts) -> Cuts:
    """Return the cuts of all x for which `keep(x in left, x in right)` is True: `or_` is the union.

    A sweep over all cuts in ascending order: at each cut, the numbers between it and the next one
    are in the left set or not, in the right set or not, and so in the result or not.

    Raises:
        Undecided: two different numbers are too near to each other to be ordered.
    """
    cuts: list[Cut] = []
    # Whether the numbers after the current cut are in left, and in right; none is before all cuts.
    inside = [False, False]
    cut_at = {cut[:2]: cut for cut in (*left, *right)}
    # Rounded places that are equal must be at the same number exactly.
    first_at: dict[float | Fraction, Cut] = {}
    for cut in (*left, *right):
        if not _same_place(first_at.setdefault(cut.place, cut), cut):
            raise Undecided("ends that are too near")
    sides = [{cut[:2] for cut in side} for side in (left, right)]
    for key in sorted(cut_at):
        # At a cut of its own a set begins or ends: its flag in `inside` flips.
        inside = [now ^ (key in side) for now, side in zip(inside, sides, strict=True)]
        # The result gets a cut only where membership changes.
        if keep(*inside) != bool(len(cuts) % 2):
            cuts.append(cut_at[key])
    return tuple(cuts)


_union = functools.partial(_combined, operator.or_)
_intersection = functools.partial(_combined, operator.and_)
_COMBINATIONS = {
    "union": _union,
    "intersection": _intersection,
    "difference": functools.partial(_combined, operator.gt),
}
# After "bb:R", the name of the reals: the sign that compares a half of them with 0.
_HALVES = pairs("^+=> _+=> _>0=> ^-=< _-=< _<0=< _ge0=>= ^+_0=>= _le0=<=")


def _together(
    parts: Iterable[RealSet | None], combine: Callable[[Cuts, Cuts], Cuts]
) -> RealSet | None:
    """Combine sets of one variable by `_union`, `_intersection` and the like.

    A set with the name "" fits any variable: `x > 1` and the interval (0, 3) give a set of x. None
    if there is no set, a part is None, or two names differ.
    """
    sets = list(parts)
    known = [part for part in sets if part is not None]
    variables = {part.name for part in known} - {""}
    if len(known) < len(sets) or not known or len(variables) > 1:
        return None
    return RealSet(functools.reduce(combine, (part.cuts for part in known)), "".join(variables))


def _inequality(left: Node, comparison: str, right: Node) -> RealSet | None:
    """Return the set of reals for which `x < 3`, `3 > x`, `x = 3` or the like is true.

    None unless one side is a name and the other a constant or ±∞.

    Args:
        left, right: the sides.
        comparison: "<", "<=", ">", ">=", "=" or "!=".
    """
    # `3 > x` is read from the right, with the sign turned round: x < 3.
    for term, sign, end in ((left, comparison, right), (right, _FLIPPED[comparison], left)):
        if free_symbols(end) - {"infinity"}:
            continue
        if is_name(term):
            return RealSet(_ray(sign, end), spelled(term))
    return None


def _ray(comparison: str, end: Node) -> Cuts:
    """Return the cuts of the reals x with `x < end` (or another comparison).

    The set is a ray; for "=" a point; for "!=" all reals but one.

    Args:
        comparison: "<", "<=", ">", ">=", "=" or "!=".
        end: the tree of a number or ±∞.

    Raises:
        Undecided: `end` is ±∞, and the set is neither x < ∞ nor x > −∞.
    """
    before, after = _cut(end, False), _cut(end, True)
    # At ±∞ there is one cut, and only x < ∞ and x > −∞ are allowed.
    allowed = {"<": _LINE[1], ">": _LINE[0]}
    if before in _LINE and before != allowed.get(comparison):
        raise Undecided("a closed end at infinity, or nothing beyond it")
    match comparison:
        case "=":
            return (before, after)
        case "!=":
            return (_LINE[0], before, after, _LINE[1])
        case "<" | "<=":
            return (_LINE[0], after if comparison == "<=" else before)
    return (before if comparison == ">=" else after, _LINE[1])


_REGIONS = names("union intersection difference builder")


def is_region(node: Node) -> bool:
    r"""Return True for inequalities, x in a set, and sets of numbers without a list of elements.

    True for `x > 1`, `\mathbb{R}`, `(0, 1) \cup (2, 3)`, `x \in (0, 1)` and `x \in \{1, 2\}`;
    False for a bare `(0, 1)`, which may be a point, a bare `\{1, 2\}`, and `x \in A`.
    """
    match node:
        case Node("list", items):
            is_system = all(item.kind in ("relation", "list") for item in items)
            return is_system and any(map(is_region, items))
        case Node("relation", (_, domain), "in"):
            # After ∈ a tuple is an interval, and listed elements constrain x too.
            return is_region(domain) or domain.kind in ("tuple", "set")
        case Node("relation", _, signs):
            return any(sign in signs for sign in ("<", ">", "!="))
    return node.kind in _REGIONS or node.name.startswith("bb:")


def compare_region(comparer: Comparer, reference: Node, answer: Node) -> Verdict | None:
    r"""Compare sets of reals and inequalities: `(0, 5)` equals `0 < x < 5`.

    Regions that are no set of reals are compared by form: relations as constraints, `x + y < 1`;
    sets with a condition, `\{x : x > y\}`, part by part. Return None if neither side is a region
    (`is_region`), or if one has a quantifier: `compare_quantified` is the next rule.
    """
    if not (is_region(reference) or is_region(answer)):
        return None
    one_set, other_set = real_set(reference), real_set(answer)
    if one_set and other_set:
        return Verdict(same_set(one_set, other_set), "region")
    if "quantified" in (reference.kind, answer.kind):
        return None
    if reference.kind != answer.kind:
        return Verdict(False, "region")
    match reference.kind:
        case "relation":
            return Verdict(same_constraint(comparer, reference, answer), "constraint")
        case "builder":
            return comparer.in_order(reference.args, answer.args, "set")
    return same_expression(reference, answer)


_BY_SIDES = names("in notin subset subseteq to mid nmid parallel perp cong sim simeq iff")


def same_constraint(comparer: Comparer, reference: Node, answer: Node) -> bool:
    """Return True if two relations are the same up to a constant factor.

    `x + y = 1` is `2x + 2y = 2` or `1 = x + y`. The factor of an inequality must be positive.
    """
    sides, name = (reference.args, answer.args), reference.name
    if len(sides[0]) != len(sides[1]) or name != answer.name:
        return False
    if len(sides[0]) > 2 or name in _BY_SIDES:
        return comparer.in_order(*sides, "").equal
    ring = Fingerprint(salt_of(reference, answer))
    if ring.of(reference) == ring.of(answer):
        return True
    is_algebraic = name in ("<", "<=", "!=", "=")
    # The sign of c, if left − right of the reference is c times that of the answer; else 0.
    sign = proportional(difference(*sides[0]), difference(*sides[1])) if is_algebraic else 0
    if sign:
        # Times −1, an equation stays true, but `x < y` would need ">".
        return sign > 0 or name in ("!=", "=")
    # `A + B = {1, 2}` is `{2, 1} = A + B`; sets have no difference.
    return name == "=" and any(
        comparer.in_order(sides[0], order, "").equal for order in (sides[1], sides[1][::-1])
    )


_UNIT_VECTORS = ("bf:i", "bf:j", "bf:k")


Grid = tuple[tuple[Node, ...], ...]
"""Rows of cells; tuples, vectors and columns are rows of one cell each."""


def _grid(node: Node) -> Grid | None:
    r"""Return the cells of a tuple, a vector, a matrix, or a sum or multiple of them.

    `(1, 2)` and `\mathbf{i} + 2\mathbf{j}` are columns, `[[1, 2], [3, 4]]` is a matrix. Cells are
    trees, `1 + 0` for example, and not evaluated. None for any other node, such as a product of two
    of them, and for sums of different shapes.
    """
    match node:
        case Node("tuple", items, "()" | "<>"):
            return tuple((item,) for item in items)
        case Node("symbol", name=name) if name in _UNIT_VECTORS:
            return tuple((number(int(name == other)),) for other in _UNIT_VECTORS)
        case Node("matrix", rows, "matrix"):
            return tuple(row.args for row in rows)
        case Node("tuple", rows, "[]") if all(
            row.kind == "tuple" and row.name == "[]" for row in rows
        ):
            return tuple(row.args for row in rows)
        # A matrix with a T; `[1, 2]` is a row here.
        case Node("power", (base, Node("symbol", name="T" | "top"))):
            is_row = base.kind == "tuple" and base.name == "[]"
            cells = (base.args,) if is_row else _grid(base)
            is_even = cells and len({*_shape(cells)}) == 1 and (is_row or base.name == "matrix")
            return tuple(zip(*cells, strict=True)) if cells and is_even else None
        case Node("sum", parts):
            grids = [_grid(part) for part in parts]
            known = [grid for grid in grids if grid]
            if len(known) < len(parts) or len({_shape(grid) for grid in known}) > 1:
                return None
            return tuple(
                tuple(Node("sum", cells) for cells in zip(*rows, strict=True))
                for rows in zip(*known, strict=True)
            )
        # A multiple, 2(1, 3) or (1, 3)/2; 2/(1, 3) is nothing.
        case Node("product" | "quotient" as kind, parts):
            placed = [(n, grid) for n, part in enumerate(parts) if (grid := _grid(part))]
            if len(placed) == 1 and (kind == "product" or placed[0][0] == 0):
                ((place, grid),) = placed
                before, after = parts[:place], parts[place + 1 :]
                return tuple(
                    tuple(Node(kind, (*before, cell, *after)) for cell in row) for row in grid
                )
    return None


def _shape(grid: Grid) -> tuple[int, ...]:
    """Return the number of cells of each row: (1, 1, 1) for a column of three."""
    return tuple(map(len, grid))


def compare_grid(comparer: Comparer, reference: Node, answer: Node) -> Verdict | None:
    r"""Compare tuples, vectors and matrices, cell by cell: `(1,-3)` and `\mathbf{i}-3\mathbf{j}`.

    Return None if neither side is one of these.
    """
    one, two = _grid(reference), _grid(answer)
    if not one or not two:
        return Verdict(False, "matrix") if one or two else None
    if any(part.name in _UNIT_VECTORS for part in (*nodes(reference), *nodes(answer))):
        # i + 2j + 0k is a vector in the plane.
        one, two = (
            side[:2] if len(side) == 3 and exact_value(side[2][0]) == 0 else side
            for side in (one, two)
        )
    if _shape(one) != _shape(two):
        return Verdict(False, "matrix")
    is_matrix = {*_shape(one)} != {1} or reference.kind == answer.kind == "matrix"
    step = "matrix" if is_matrix else "tuple" if reference.kind == answer.kind else "vector"
    return comparer.in_order([*itertools.chain(*one)], [*itertools.chain(*two)], step)
