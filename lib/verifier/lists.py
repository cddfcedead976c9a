"""Comparison of lists, sets, and tuples with names."""

from collections.abc import Iterator
from typing import NamedTuple

from lib.verifier.comparer import Comparer
from lib.verifier.quantities import compare_quantity
from lib.verifier.relations import names_agree, stated
from lib.verifier.rules import Decision
from lib.verifier.tree import (
    Node,
    is_name,
    negated,
    nodes,
    spelled,
)


class _Collection(NamedTuple):
    """Elements; `fields` where each has a name of its own; `is_or` where they
    are joined by "or", not by "and"; None where by neither.

    `name` is that of all, '' where there is none.
    """

    items: tuple[Node, ...]
    fields: dict[str, Node]
    is_or: bool | None
    is_set: bool
    name: str = ""


def compare_collection(comparer: Comparer, reference: Node, answer: Node) -> Decision | None:
    """Compare lists, sets and named values, element by element."""
    kinds = {reference.kind, answer.kind}
    is_named_tuple = any(
        node.kind == "relation" and node.args[0].kind == "tuple" for node in (reference, answer)
    )
    # x = y = 1 against (1, 1)
    is_chain = kinds == {"relation", "tuple"} and not is_named_tuple
    if "amount" in kinds:
        reference, answer = (
            node._replace(kind="amount")
            if node.kind == "list" and {part.kind for part in node.args} == {"unit"}
            else node
            for node in (reference, answer)
        )
        return compare_quantity(comparer, reference, answer)
    if not (
        kinds & {"list", "set"}
        or is_named_tuple
        or is_chain
        or _is_listed(reference)
        or _is_listed(answer)
    ):
        return None
    one, two = (_collected(comparer, node) for node in (reference, answer))
    if reference.kind == answer.kind == "tuple" and reference.name == answer.name == "[]":
        is_same = len(reference.args) == len(answer.args)
        return (
            comparer.all_same(zip(reference.args, answer.args, strict=True), "list")
            if is_same
            else Decision(False, "list")
        )
    if one is None or two is None:
        tuples = [
            node
            for node in (reference, answer)
            if node.kind == "tuple" and node.name in ("()", "<>")
        ]
        known = one or two
        if tuples and known and known.fields and known.is_or is not True:
            ordered = tuple(known.fields[name] for name in sorted(known.fields))
            items = (
                (tuples[0].args, ordered) if tuples[0] is reference else (ordered, tuples[0].args)
            )
            if len(items[0]) == len(items[1]):
                return comparer.all_same(zip(*items, strict=True), "name")
        return Decision(False, "list")
    # Alternatives are not parts that hold together.
    if {one.is_or, two.is_or} == {True, False}:
        return Decision(False, "list")
    if one.fields and two.fields:
        # Both name their values: the names must be the same.
        if one.fields.keys() != two.fields.keys():
            return Decision(False, "name")
        return comparer.all_same(
            ((item, two.fields[name]) for name, item in one.fields.items()), "list"
        )
    for side, other in ((one, two), (two, one)):
        if side.fields and (
            other.name or not all(names_agree(name, "", comparer.problem) for name in side.fields)
        ):
            return Decision(False, "name")
    # x = 1, 2 is not y = 1, 2.
    if one.name and two.name and one.name != two.name:
        return Decision(False, "name")
    if one.fields and not two.is_set:
        # Values of a reference with names come in its order, or the alphabet's.
        orders = (one.items, tuple(one.fields[name] for name in sorted(one.fields)))
        return max(
            comparer.all_same(zip(order, two.items, strict=True), "name")
            if len(order) == len(two.items)
            else Decision(False, "name")
            for order in orders
        )
    expected, actual = (
        _distinct(comparer, side.items) if side.is_set else side.items for side in (one, two)
    )
    return comparer.same_items(expected, actual, "name" if one.fields or two.fields else "list")


def _distinct(comparer: Comparer, items: tuple[Node, ...]) -> tuple[Node, ...]:
    kept: list[Node] = []
    for item in items:
        # Quadratic; a longer set keeps its repetitions.
        if len(items) > 60 or not any(comparer.equal(item, other) for other in kept):
            kept.append(item)
    return tuple(kept)


def _is_listed(node: Node) -> bool:
    """Return True for `[1, 2, 3]`, an interval only with two ends; ± stands for two values."""
    return (node.kind == "tuple" and node.name == "[]" and len(node.args) != 2) or has_both(node)


def has_both(node: Node) -> bool:
    """Return True if ± is in a tree."""
    return any(part.kind == "plusminus" for part in nodes(node))


def _collected(comparer: Comparer, node: Node) -> _Collection | None:
    """Return the elements of `node`, or None if it is no collection."""
    if (
        node.kind == "relation"
        and node.name == "="
        and node.args[0].kind == node.args[1].kind == "tuple"
    ):
        sides = [part.args for part in node.args]
        if len(sides[0]) == len(sides[1]) and all(map(is_name, sides[0])):
            return _Collection(
                sides[1], dict(zip(map(spelled, sides[0]), sides[1], strict=True)), None, False
            )
    if node.kind == "relation" and {*node.name.split()} == {"="} and len(node.args) > 2:
        pair = stated(comparer, node)
        each = pair.name.split(",") if pair else []
        if pair and len(each) == len(node.args) - 1 > 1:
            return _Collection(
                pair.values * len(each), dict.fromkeys(each, pair.values[0]), None, False
            )
    if node.kind == "relation" and node.name in ("=", "in") and is_name(node.args[0]):
        inner = _collected(comparer, node.args[1])
        return (
            inner._replace(name=spelled(node.args[0]))
            if inner and (node.name == "=" or inner.is_set)
            else None
        )
    if node.kind == "tuple" and _is_listed(node) and node.name == "[]":
        return _Collection(tuple(node.args), {}, None, False)
    if node.kind == "set":
        # ±a in a set is two elements.
        items = tuple(item for part in node.args for item in signs(part))
        return _Collection(items, {}, None, True)
    if node.kind == "list":
        return _collected_list(comparer, node)
    return _Collection(tuple(signs(node)), {}, None, False) if has_both(node) else None


def _collected_list(comparer: Comparer, node: Node) -> _Collection | None:
    pairs = [stated(comparer, item) for item in node.args]
    if any(pair is None for pair in pairs):
        return _Collection(node.args, {}, _is_or(node), False)
    known = [pair for pair in pairs if pair is not None]
    named_ones = [pair.name for pair in known if pair.name]
    values = [signed for pair in known for signed in signs(pair.values[0])]
    if (
        len(set(named_ones)) == len(known) > 1
        and "" not in named_ones
        and len(values) == len(known)
    ):
        fields = {pair.name: pair.values[0] for pair in known}
        return _Collection(tuple(fields.values()), fields, _is_or(node), False)
    # x = 1, x = 2: values of one name.
    is_one = len(set(named_ones)) == 1
    if is_one and len(named_ones) in (1, len(known)):
        return _Collection(tuple(values), {}, _is_or(node), False, named_ones[0])
    if named_ones:
        return _Collection(node.args, {}, _is_or(node), False)
    return _Collection(tuple(values), {}, _is_or(node), False)


def _is_or(node: Node) -> bool | None:
    return {"or": True, "and": False}.get(node.name)


def signs(node: Node) -> Iterator[Node]:
    """Yield `node` with all its ± as plus, then with all as minus; ∓ the other way."""
    for upper in (True, False) if has_both(node) else (True,):
        yield _signed(node, upper)


def _signed(node: Node, upper: bool) -> Node:
    parts = tuple(_signed(part, upper) for part in node.args)
    if node.kind != "plusminus":
        return node._replace(args=parts)
    # ∓ has the other sign.
    last = parts[-1] if upper == (node.name == "+-") else negated(parts[-1])
    return last if len(parts) == 1 else Node("sum", (parts[0], last))
