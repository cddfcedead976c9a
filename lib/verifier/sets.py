"""Sets of numbers: intervals, inequalities, unions, sets by a condition; constraints; matrices."""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import NamedTuple

from lib.verifier.evaluate import exact_value, real_value
from lib.verifier.identity import Fingerprint, proportional, same_expression
from lib.verifier.rules import INTERVALS, Comparer, Verdict, either
from lib.verifier.tree import (
    INFINITY,
    MAX_ITEMS,
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
    substituted,
    symbol,
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
    try:
        return _real_set(node)
    except (TooHard, Undecided):
        return None


def _real_set(node: Node) -> RealSet | None:
    match node:
        case Node("symbol", name=name) if name.startswith("bb:R"):
            sign = _HALVES.get(name.removeprefix("bb:R"))
            cuts = _LINE if node == REALS else _ray(sign, number(0)) if sign else ()
            return RealSet(cuts) if cuts else None
        case Node("tuple", (low, high), "()" | "[]" | "(]" | "[)"):
            above, below = (
                f"{sign}=" if end in "[]" else sign
                for sign, end in zip("><", node.name, strict=True)
            )
            cuts = _intersection(_ray(above, low), _ray(below, high))
            return RealSet(cuts) if cuts else None
        case Node("set", items) if items:
            return RealSet(functools.reduce(_union, (_ray("=", item) for item in items)))
        case Node("union" | "intersection" | "difference" as kind, parts):
            return _together(map(real_set, parts), _COMBINATIONS[kind])
        case Node("list", parts, joint) if all(part.kind in ("relation", "list") for part in parts):
            return _together(map(real_set, parts), _union if joint == "or" else _intersection)
        case Node("builder", (variable, condition)):
            # The name of the variable is bound.
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
    """Return True if two sets have the same elements; names must agree where both have one.

    Raises:
        Undecided, TooHard: an end is not equal for certain.
    """
    if reference.name and answer.name and reference.name != answer.name:
        return False
    return len(reference.cuts) == len(answer.cuts) and all(
        one[:2] == two[:2]
        and (one.end is None or two.end is None or same_expression(one.end, two.end).equal)
        for one, two in zip(reference.cuts, answer.cuts, strict=True)
    )


def _cut(node: Node, after: bool) -> Cut:
    """Return a cut at a constant; nothing is after an infinite one."""
    if free_symbols(node) == {"infinity"}:
        sign = exact_value(substituted(node, {"infinity": number(1)}))
        if sign in (1, -1):
            return _LINE[sign == 1]
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
_COMBINATIONS = {
    "union": _union,
    "intersection": _intersection,
    "difference": functools.partial(_combined, operator.gt),
}
_HALVES = pairs("^+=> _+=> _>0=> ^-=< _-=< _<0=< _ge0=>= ^+_0=>= _le0=<=")


def _together(
    parts: Iterable[RealSet | None], combine: Callable[[Cuts, Cuts], Cuts]
) -> RealSet | None:
    """Join sets of one variable, whose name one of them may leave unsaid."""
    sets = list(parts)
    known = [part for part in sets if part is not None]
    variables = {part.name for part in known} - {""}
    if len(known) < len(sets) or not known or len(variables) > 1:
        return None
    return RealSet(functools.reduce(combine, (part.cuts for part in known)), "".join(variables))


def _inequality(left: Node, comparison: str, right: Node) -> RealSet | None:
    for term, sign, end in ((left, comparison, right), (right, _FLIPPED[comparison], left)):
        if free_symbols(end) - {"infinity"}:
            continue
        match term:
            case Node("call", (inside,), "abs") if is_name(inside) and sign[0] in "<>":
                # |x| < 3
                combine = _intersection if sign[0] == "<" else _union
                cuts = combine(_ray(sign, end), _ray(_FLIPPED[sign], negated(end)))
                return RealSet(cuts, spelled(inside))
        if is_name(term):
            return RealSet(_ray(sign, end), spelled(term))
    return None


def _ray(comparison: str, end: Node) -> Cuts:
    """Return the reals that are in this relation to `end`."""
    before, after = _cut(end, False), _cut(end, True)
    if before in _LINE and (comparison not in "<>" or before == _LINE[comparison == ">"]):
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
_DOMAINS = pairs(
    "bb:N=bb:Z+ bb:N^+=bb:Z+ bb:Z^+=bb:Z+ bb:Z_+=bb:Z+ bb:Z_>0=bb:Z+ bb:R_>0=bb:R^+ bb:R_+=bb:R^+"
)


def domain_of(node: Node) -> str:
    """Return the set of numbers under one name."""
    return _DOMAINS.get(node.name, spelled(node))


def is_region(node: Node) -> bool:
    """Return True for a set of numbers that is no list of its elements, or inequalities."""
    match node:
        case Node("quantified", (statement, _)):
            return is_region(statement)
        case Node("list", items):
            is_system = all(item.kind in ("relation", "list") for item in items)
            return is_system and any(map(is_region, items))
        case Node("relation", (_, domain), "in"):
            return is_region(domain) or domain.kind in ("tuple", "set")
        case Node("relation", _, signs):
            return any(sign in signs for sign in ("<", ">", "!="))
    return node.kind in _REGIONS or node.name.startswith("bb:")


def compare_region(comparer: Comparer, reference: Node, answer: Node) -> Verdict | None:
    """Compare sets of reals, intervals with letters, and constraints; else sets of another kind."""
    if not (is_region(reference) or is_region(answer)):
        return None
    reference, answer = (_enumerated(node) for node in (reference, answer))
    one_set, other_set = real_set(reference), real_set(answer)
    if one_set and other_set:
        return Verdict(same_set(one_set, other_set), "region")
    if either("quantified", reference, answer):
        return None
    one, two = _interval(reference, answer), _interval(answer, reference)
    if one and two and {reference.kind, answer.kind} != {"relation"}:
        is_same = one.name == two.name
        return comparer.in_order(one.args, two.args if is_same else (), "region")
    if reference.kind != answer.kind:
        return Verdict(False, "region")
    match reference.kind:
        case "relation":
            return Verdict(same_constraint(comparer, reference, answer), "constraint")
        case "builder":
            return _same_builder(comparer, reference, answer)
        case "list":
            is_same = reference.name == answer.name
            return comparer.in_any_order(reference.args, answer.args if is_same else (), "list")
    return same_expression(reference, answer)


def _interval(node: Node, other: Node) -> Node | None:
    """Return an interval whose ends may have letters; the variable is what the other side lacks."""
    match node:
        case Node("relation", (_, domain), "in"):
            return _interval(domain, other)
        case Node("tuple", (_, _), name) if name in INTERVALS:
            return node
        case Node("relation", (first, *middle, last), name) if {*name.split()} <= {"<", "<="}:
            signs = name.split()
            low, high = ("(" if signs[0] == "<" else "["), (")" if signs[-1] == "<" else "]")
            taken = free_symbols(other) if other.kind == "tuple" else frozenset()
            if len(middle) == 1 and is_name(middle[0]):
                return Node("tuple", (first, last), low + high)
            if not middle and is_name(first) and not free_symbols(first) & taken:
                return Node("tuple", (negated(INFINITY), last), f"({high}")
            if not middle and is_name(last) and not free_symbols(last) & taken:
                return Node("tuple", (first, INFINITY), f"{low})")
    return None


def _same_builder(comparer: Comparer, reference: Node, answer: Node) -> Verdict:
    """Return the same elements under the same condition, whatever the bound letter is called."""
    mine, theirs = (
        sorted(name for name in free_symbols(node.args[0]) if not name.startswith("bb:"))
        for node in (reference, answer)
    )
    if mine != theirs and ({*mine} & free_symbols(answer) or len(mine) != len(theirs)):
        return Verdict(False, "set")
    renamed = substituted(answer, dict(zip(theirs, map(symbol, mine), strict=True)))
    return comparer.in_order(reference.args, renamed.args, "set")


def _enumerated(node: Node) -> Node:
    r"""Return `\{x \in \mathbb{Z} : 0 < x < 4\}` and `\{2n : n \in \{1, 2\}\}` as sets of
    elements.
    """
    match node:
        case Node("builder", (Node("relation", (variable, domain), "in"), condition)):
            inside = real_set(condition) if domain_of(domain) in ("bb:Z", "bb:Z+") else None
            if inside is None or len(inside.cuts) != 2 or inside.name != spelled(variable):
                return node
            low, high = inside.cuts
            if low.end or high.end or {type(low.place), type(high.place)} != {Fraction}:
                return node
            first = math.floor(low.place)
            first = max(first, 1) if domain_of(domain) == "bb:Z+" else first
            if high.place - first < MAX_ITEMS:
                near = range(first, math.ceil(high.place) + 1)
                items = (n for n in near if low[:2] <= (n, False) and (n, True) <= high[:2])
                return Node("set", tuple(map(number, items)))
        case Node("builder", (element, Node("relation", (Node("symbol", _, name), members), "in"))):
            if members.kind == "set":
                images = (substituted(element, {name: item}) for item in members.args)
                return Node("set", tuple(images))
    return node


_ORDERED = names("in notin subset subseteq to mid nmid")
_SYMMETRIC = names("= parallel perp cong sim simeq iff")


def same_constraint(comparer: Comparer, reference: Node, answer: Node) -> bool:
    """Compare relations with symbols, up to a positive factor and turning round."""
    sides, name = (reference.args, answer.args), reference.name
    if len(sides[0]) != len(sides[1]) or name != answer.name:
        return False
    if len(sides[0]) > 2 or name in _ORDERED:
        return comparer.in_order(*sides, "").equal
    field = Fingerprint("")
    if field.of(reference) == field.of(answer):
        return True
    is_algebraic = name in ("<", "<=", "!=", "=")
    sign = proportional(difference(*sides[0]), difference(*sides[1])) if is_algebraic else 0
    if sign:
        return sign > 0 or name in ("!=", "=")
    is_plain = any(part.kind in ("number", "symbol", "sum", "product") for part in sides[0])
    return name in _SYMMETRIC and any(
        comparer.in_order(sides[0], order, "").equal
        for order in (sides[1], sides[1][::-1])
        if name != "=" or not is_plain
    )


_UNIT_VECTORS = ("bf:i", "bf:j", "bf:k")


_POINTS = frozenset("APQMCDV")


Grid = tuple[tuple[Node, ...], ...]
"""Rows of cells; a tuple, a vector and a column have one cell a row."""


def _grid(node: Node) -> Grid | None:
    """Return the cells of a tuple, a matrix, or a sum, multiple or product of them."""
    match node:
        case Node("tuple", items, "()" | "<>"):
            return tuple((item,) for item in items)
        case Node("call", items, name) if name in _POINTS and len(items) > 1:
            return tuple((item,) for item in items)
        case Node("symbol", name=name) if name in _UNIT_VECTORS:
            return tuple((number(int(name == other)),) for other in _UNIT_VECTORS)
        case Node("matrix", rows, "matrix"):
            return tuple(row.args for row in rows)
        case Node("tuple", rows, "[]") if all(
            row.kind == "tuple" and row.name == "[]" for row in rows
        ):
            return tuple(row.args for row in rows)
        case Node("sum", parts):
            grids = [_grid(part) for part in parts]
            known = [grid for grid in grids if grid]
            if len(known) < len(parts) or len({_shape(grid) for grid in known}) > 1:
                return None
            return tuple(
                tuple(Node("sum", cells) for cells in zip(*rows, strict=True))
                for rows in zip(*known, strict=True)
            )
        case Node("product" | "quotient" as kind, parts):
            match [(place, grid) for place, part in enumerate(parts) if (grid := _grid(part))]:
                case [(place, grid)] if kind == "product" or not place:
                    before, after = parts[:place], parts[place + 1 :]
                    return tuple(
                        tuple(Node(kind, (*before, cell, *after)) for cell in row) for row in grid
                    )
        case Node("call", (left, right), "ordered " | "ordered cdot"):
            # Each further product multiplies what is in a cell.
            is_short = spelled(node).count("ordered") < 3
            return _multiplied(_grid(left), _grid(right)) if is_short else None
    return None


def _shape(grid: Grid) -> tuple[int, ...]:
    return tuple(map(len, grid))


def _multiplied(left: Grid | None, right: Grid | None) -> Grid | None:
    # Rows of one length, as many as the other's columns.
    if not left or not right or {*_shape(left)} != {len(right)} or len({*_shape(right)}) > 1:
        return None
    if len(left) * len(right[0]) > 64:
        return None
    return tuple(
        tuple(
            Node("sum", tuple(Node("product", pair) for pair in zip(row, column, strict=True)))
            for column in zip(*right, strict=True)
        )
        for row in left
    )


def compare_grid(comparer: Comparer, reference: Node, answer: Node) -> Verdict | None:
    """Compare tuples, vectors and matrices, cell by cell."""
    if reference.kind == answer.kind == "tuple" and {reference.name, answer.name} <= INTERVALS:
        is_same = reference.name == answer.name
        return comparer.in_order(reference.args, answer.args if is_same else (), "tuple")
    one, two = _grid(reference), _grid(answer)
    if not one or not two:
        return Verdict(False, "matrix") if one or two else None
    if any(part.name in _UNIT_VECTORS for part in (*nodes(reference), *nodes(answer))):
        # In the plane, without a part along k.
        one, two = (
            side[:2] if len(side) > 2 and exact_value(side[2][0]) == 0 else side
            for side in (one, two)
        )
    if _shape(one) != _shape(two):
        return Verdict(False, "matrix")
    is_matrix = {*_shape(one)} != {1} or reference.kind == answer.kind == "matrix"
    step = "matrix" if is_matrix else "tuple" if reference.kind == answer.kind else "vector"
    return comparer.in_order([*itertools.chain(*one)], [*itertools.chain(*two)], step)
