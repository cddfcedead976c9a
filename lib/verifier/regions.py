"""Regions and constraints: intervals, inequalities, sets by a condition."""

import math
from fractions import Fraction

from lib.verifier import identity
from lib.verifier.comparer import INTERVALS, REGIONS, Comparer
from lib.verifier.evaluate import exact_value
from lib.verifier.identity import proportional, same_expression
from lib.verifier.rules import Decision
from lib.verifier.sets import real_set, same_set
from lib.verifier.tree import (
    INFINITY,
    MAX_ITEMS,
    Node,
    difference,
    free_symbols,
    is_name,
    negated,
    number,
    pairs,
    spelled,
    substituted,
    symbol,
)

_DOMAINS = pairs(
    "bb:N=bb:Z+ bb:N^+=bb:Z+ bb:Z^+=bb:Z+ bb:Z_+=bb:Z+ bb:Z_>0=bb:Z+ bb:R_>0=bb:R^+ bb:R_+=bb:R^+"
)


def domain_of(node: Node) -> str:
    """Return the set of numbers under one name."""
    return _DOMAINS.get(node.name, spelled(node))


def is_region(node: Node) -> bool:
    """Return True for a set of numbers that is no list of its elements, or inequalities."""
    if node.kind == "quantified":
        return is_region(node.args[0])
    if node.kind == "list":
        return (
            bool(node.args)
            and any(map(is_region, node.args))
            and all(item.kind in ("relation", "list") for item in node.args)
        )
    if node.kind == "relation" and node.name == "in":
        return is_region(node.args[1]) or node.args[1].kind in ("tuple", "set")
    is_inequality = node.kind == "relation" and any(op in node.name for op in ("<", ">", "!="))
    return is_inequality or node.kind in REGIONS or node.name.startswith("bb:")


def compare_region(comparer: Comparer, reference: Node, answer: Node) -> Decision | None:
    """Compare sets of reals, intervals with letters, and constraints; else sets of another kind."""
    if not (is_region(reference) or is_region(answer)):
        return None
    reference, answer = (_enumerated(_unnamed_set(node)) for node in (reference, answer))
    if reference.kind == answer.kind == "set":
        return comparer.same(reference, answer).via("set")
    one_set, other_set = real_set(reference), real_set(answer)
    if one_set and other_set:
        return Decision(same_set(one_set, other_set), "region")
    one, two = _interval(reference, answer), _interval(answer, reference)
    if one and two and {reference.kind, answer.kind} != {"relation"}:
        decision = comparer.all_same(zip(one.args, two.args, strict=True), "region")
        return decision if one.name == two.name else Decision(False, "region")
    if reference.kind == answer.kind == "relation":
        return Decision(same_constraint(comparer, reference, answer), "constraint")
    if reference.kind == answer.kind == "builder":
        return _same_builder(comparer, reference, answer)
    if reference.kind == answer.kind == "list" and reference.name == answer.name:
        return comparer.same_items(reference.args, answer.args, "list")
    if reference.kind == answer.kind == "symbol":
        return Decision(domain_of(reference) == domain_of(answer), "region")
    return (
        same_expression(reference, answer)
        if reference.kind == answer.kind
        else Decision(False, "region")
    )


def _unnamed_set(node: Node) -> Node:
    r"""Return `A \cap B = (1, 2)` as (1, 2)."""
    is_definition = node.kind == "relation" and node.name == "=" and len(node.args) == 2
    if is_definition and is_region(node.args[1]) and is_name(node.args[0]):
        return node.args[1]
    return node


def _interval(node: Node, other: Node) -> Node | None:
    """Return an interval whose ends may have letters; the variable is what the other side lacks."""
    if node.kind == "relation" and node.name == "in":
        node = node.args[1]
    if node.kind == "tuple" and len(node.args) == 2 and node.name in INTERVALS:
        return node
    signs = node.name.split(" ")
    if node.kind != "relation" or not set(signs) <= {"<", "<="}:
        return None
    low, high = ("(" if signs[0] == "<" else "["), (")" if signs[-1] == "<" else "]")
    first, *middle, last = node.args
    if len(middle) == 1 and is_name(middle[0]):
        return Node("tuple", (first, last), low + high)
    taken = free_symbols(other) if other.kind == "tuple" else frozenset()
    if not middle and is_name(first) and not free_symbols(first) & taken:
        return Node("tuple", (negated(INFINITY), last), f"({high}")
    if not middle and is_name(last) and not free_symbols(last) & taken:
        return Node("tuple", (first, INFINITY), f"{low})")
    return None


def _same_builder(comparer: Comparer, reference: Node, answer: Node) -> Decision:
    """Return the same elements under the same condition, whatever the bound letter is called."""
    pairs = zip(reference.args, answer.args, strict=True)
    mine, theirs = (
        sorted(name for name in free_symbols(node.args[0]) if not name.startswith("bb:"))
        for node in (reference, answer)
    )
    if mine != theirs and set(mine) & free_symbols(answer):
        return Decision(False, "set")
    if len(mine) == len(theirs):
        renamed = substituted(answer, dict(zip(theirs, map(symbol, mine), strict=True)))
        pairs = zip(reference.args, renamed.args, strict=True)
    return comparer.all_same(pairs, "set")


def _enumerated(node: Node) -> Node:
    r"""Return `\{x \in \mathbb{Z} : 0 < x < 4\}` and `\{2n : n \in \{1, 2\}\}` as sets of
    elements.
    """
    if node.kind != "builder":
        return node
    element, condition = node.args
    if element.kind == "relation" and element.name == "in":
        domain = domain_of(element.args[1])
        inside = real_set(condition) if domain in ("bb:Z", "bb:Z+") else None
        if inside is None or len(inside.cuts) != 2 or inside.name != spelled(element.args[0]):
            return node
        low, high = inside.cuts
        if low.end or high.end or not all(isinstance(cut.place, Fraction) for cut in (low, high)):
            return node
        first = math.floor(low.place) + 1 if low.after else math.ceil(low.place)
        last = math.floor(high.place) if high.after else math.ceil(high.place) - 1
        first = max(first, 1) if domain == "bb:Z+" else first
        return (
            Node("set", tuple(map(number, range(first, last + 1))))
            if last - first < MAX_ITEMS
            else node
        )
    is_image = (
        condition.kind == "relation" and condition.name == "in" and condition.args[1].kind == "set"
    )
    if is_image and condition.args[0].kind == "symbol":
        name = condition.args[0].name
        return Node(
            "set", tuple(substituted(element, {name: item}) for item in condition.args[1].args)
        )
    return node


def same_constraint(comparer: Comparer, reference: Node, answer: Node) -> bool:
    """Compare relations with symbols, up to a positive factor and turning round."""
    if len(reference.args) != len(answer.args) or reference.name != answer.name:
        return False
    if len(reference.args) > 2 or reference.name in (
        "in",
        "notin",
        "subset",
        "subseteq",
        "to",
        "mid",
        "nmid",
    ):
        return comparer.all_same(zip(reference.args, answer.args, strict=True), "").equal
    if identity_of(reference) == identity_of(answer):
        return True
    is_algebraic = reference.name in ("<", "<=", "!=", "=")
    sign = (
        proportional(difference(*reference.args), difference(*answer.args)) if is_algebraic else 0
    )
    if sign < 0:
        return reference.name in ("!=", "=")
    if sign > 0:
        return True
    sides = [reference.args, answer.args]
    return reference.name in ("=", "parallel", "perp", "cong", "sim", "simeq", "iff") and any(
        comparer.all_same(zip(sides[0], order, strict=True), "").equal
        for order in (sides[1], sides[1][::-1])
        if reference.name != "="
        or all(part.kind not in ("number", "symbol", "sum", "product") for part in sides[0])
    )


def solves(solution: Node, equation: Node) -> bool:
    r"""Return True if `y = 6/x` is `xy = 6`, linear in y with a constant that is not 0."""
    name = solution.args[0]
    if (
        solution.name != "="
        or equation.name != "="
        or name.kind != "symbol"
        or len(solution.args + equation.args) > 4
    ):
        return False
    gap = difference(*equation.args)
    at = [substituted(gap, {name.name: number(value)}) for value in (0, 1, 2)]
    rest = number(
        exact_value(substituted(at[0], {other: number(7) for other in free_symbols(at[0])})) or 0
    )
    is_constant = rest.value and same_expression(at[0], rest).equal
    if name.name in free_symbols(solution.args[1]) or not is_constant:
        return False
    is_linear = same_expression(difference(at[2], at[1]), difference(at[1], at[0])).equal
    is_solution = same_expression(substituted(gap, {name.name: solution.args[1]}), number(0))
    return (
        is_linear
        and is_solution.equal
        and same_expression(
            gap, Node("sum", (at[0], Node("product", (name, difference(at[1], at[0])))))
        ).equal
    )


def identity_of(node: Node) -> int:
    """Return a number that trees share whose parts are identical."""
    return identity.Fingerprint("").of(node)
