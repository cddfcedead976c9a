"""Equations as values with names."""

import re
from fractions import Fraction
from typing import NamedTuple

from lib.verifier.atoms import GREEK
from lib.verifier.comparer import Comparer, either, is_vain
from lib.verifier.evaluate import real_value
from lib.verifier.regions import same_constraint, solves
from lib.verifier.rules import Decision
from lib.verifier.tree import (
    FUNCTIONS,
    Node,
    free_symbols,
    is_name,
    nodes,
    spelled,
    substituted,
    symbol,
)
from lib.verifier.words import may_label


class Named(NamedTuple):
    """Values with the name that the answer gives them, '' without one.

    Attributes:
        approximate: what is written after ≈.
    """

    name: str
    values: tuple[Node, ...]
    approximate: tuple[Node, ...] = ()


def named(node: Node) -> Named | None:
    """Return the name and the values of a chain of equations, or None if it states no value.

    `x = 2 + 3 = 5` has two values, which the caller must find equal.
    """
    if node.kind != "relation":
        return Named("", (node,))
    # A chain a = b ≈ c has n parts and n − 1 operators.
    operators, parts = node.name.split(" "), node.args
    # X ~ N(0, 1) names a distribution, x ↦ f(x) a function.
    if operators in (["sim"], ["mapsto"]):
        return (
            Named(spelled(parts[0]) if operators == ["sim"] else "", parts[1:])
            if is_name(parts[0])
            else None
        )
    if not set(operators) <= {"=", "~"}:
        return None
    is_turned = is_name(parts[-1]) and not (
        is_name(parts[0]) or free_symbols(parts[0]) or "~" in operators
    )
    # 5 = x is x = 5.
    if is_turned:
        parts = parts[::-1]
    is_constant = parts[0] in (symbol("e"), symbol("i")) and not free_symbols(parts[-1])
    count = next((n for n, part in enumerate(parts[:-1]) if not is_name(part)), len(parts) - 1)
    count = max(count, int(is_constant))
    values, links = parts[count:], operators[count:]
    # After ≈ nothing is exact.
    exact = links.index("~") + 1 if "~" in links else len(values)
    names = dict.fromkeys(map(spelled, parts[:count]))
    return Named(",".join(names), values[:exact], values[exact:])


def value_of(node: Node) -> Node:
    """Return the value of an equation's name; anything else as it is."""
    pair = named(node)
    return pair.values[0] if pair and len(pair.values) == 1 else node


def stated(comparer: Comparer, node: Node) -> Named | None:
    """Return the value that `node` states, when every link of its chain says the same."""
    pair = named(node)
    if pair is None or (len(pair.values) == 1 and not pair.approximate):
        return pair
    first, *others = pair.values
    if not pair.name and is_vain(node) and first.kind == "number":
        return None
    # x = 7 = 8 states nothing.
    is_true = all(comparer.equal(first, other) for other in others)
    return pair if is_true and _approximates(pair) else None


def _approximates(pair: Named) -> bool:
    """Return True if what is after ≈, if anything, is off by less than a unit of its last place."""
    if not pair.approximate:
        return True
    value, last = real_value(pair.values[0]), pair.approximate[-1]
    if value is None or last.value is None or "." not in last.name or len(pair.approximate) > 1:
        return False
    return abs(value - last.value) < Fraction(1, 10 ** len(last.name.partition(".")[2]))


def compare_relation(comparer: Comparer, reference: Node, answer: Node) -> Decision | None:
    """Compare equations: as values if they give a name one, else as constraints."""
    if not either("relation", reference, answer) or "list" in (reference.kind, answer.kind):
        return None
    if any(
        node.kind == "relation" and node.args[0].kind == "tuple" for node in (reference, answer)
    ):
        return None
    if {reference.kind, answer.kind} == {"relation", "tuple"} and any(
        len(n.args) > 2 and n.kind == "relation" for n in (reference, answer)
    ):
        return None
    if all(node.kind == "relation" and node.args[0].kind == "call" for node in (reference, answer)):
        # f(x) = x² is f(t) = t².
        reference, answer = _bound(reference), _bound(answer)
    expected, actual = stated(comparer, reference), stated(comparer, answer)
    if expected and actual:
        if names_agree(expected.name, actual.name, comparer.problem):
            decision = comparer.same(expected.values[0], actual.values[0])
            is_more = decision.equal or not (expected.approximate or actual.approximate)
            if not is_more and expected.values[0].value is not None and actual.approximate:
                return comparer.same(expected.values[0], actual.approximate[-1]).via("name")
            return decision if expected.name == actual.name else decision.via("name")
        # A name on one side only, and no name that may go unsaid.
        if not (expected.name and actual.name):
            return Decision(False, "name")
    if reference.kind == answer.kind == "relation" and not is_vain(answer):
        is_same = same_constraint(comparer, reference, answer)
        return Decision(
            is_same or solves(reference, answer) or solves(answer, reference), "constraint"
        )
    return Decision(False, "name")


def names_agree(right: str, actual: str, problem: str) -> bool:
    """Return True if two spelled names, '' for none, may name the same thing; `y` may be f(x)."""
    if right == actual:
        return True
    if right and actual:
        return {right[:2], actual[:2]} == {"f(", "y"} or {*right.split(",")} == {*actual.split(",")}
    name = right or actual
    # A word of three letters or more is a label, not a variable.
    is_words = name.startswith("label:") or re.fullmatch(r"[^\W\d_]{3,}", name)
    return not is_words or name in GREEK or may_label(name.removeprefix("label:"), problem)


_FUNCTION = re.compile(r"(?:[A-Za-z]|[pP][hs]i)(?:'*|\^-1|_\w+)")


def _bound(node: Node) -> Node:
    """Return `f(x) = x^2` with the arguments of f under names of their own."""
    parts = node.args
    if (
        node.kind == "relation"
        and node.name == "="
        and parts[0].kind == "call"
        and is_name(parts[0])
    ):
        values = {
            part.name: symbol(f"argument {place}")
            for place, part in enumerate(parts[0].args)
            if _FUNCTION.fullmatch(parts[0].name)
            and part.kind == "symbol"
            and len(part.name) == 1
            and part.name.islower()
        }
        other = {node.name for node in nodes(parts[0]) if node.kind == "symbol"}
        if parts[1].kind == "call" and parts[1].name not in FUNCTIONS:
            return node
        return substituted(node, values) if values and len(values) == len(other) else node
    return node
