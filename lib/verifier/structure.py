"""Whether two trees say the same: what kind of thing each is, then its parts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lib.verifier.arrays import is_nested, same_in_order, same_matrix, same_tuple
from lib.verifier.evaluate import exact_value
from lib.verifier.limits import MAX_ITEMS
from lib.verifier.named import Named, named, names_agree, spelling
from lib.verifier.quantities import (
    same_angle,
    same_base,
    same_percent,
    same_ratio,
    same_with_unit,
)
from lib.verifier.realsets import real_set, same_set
from lib.verifier.scalars import Undecided, proportional, same_scalar
from lib.verifier.tree import MINUS_ONE, Node, TooHard, canonical, negated

_SETS = frozenset(["union", "intersection", "difference", "builder"])
_COLLECTIONS = frozenset(["list", "set"])
_REALS = Node("symbol", (), "reals")
_MAX_PAIRS = 2_500


def same(reference: Node, answer: Node) -> tuple[bool, str]:
    """Whether `answer` is as good as `reference`, and the step that decided it.

    Raises:
        Undecided, TooHard: see `same_scalar`.
    """
    if reference == answer:
        return True, "structure"
    if (
        _REALS in (reference, answer)
        or _kinds(reference, answer) & _SETS
        or _inequality(reference)
        or _inequality(answer)
    ):
        return _same_region(reference, answer), "structure"
    if reference.kind == "relation" or answer.kind == "relation":
        return _same_relation(reference, answer)
    if reference.kind in _COLLECTIONS or answer.kind in _COLLECTIONS:
        return _same_collection(reference, answer), "structure"
    return _same_value(reference, answer)


def _kinds(*nodes: Node) -> set[str]:
    return {node.kind for node in nodes}


def _same_value(reference: Node, answer: Node) -> tuple[bool, str]:
    kinds = _kinds(reference, answer)
    if "text" in kinds:
        return plain(reference) == plain(answer), "text"
    if "matrix" in kinds or is_nested(reference) or is_nested(answer):
        return same_matrix(reference, answer, same), "structure"
    if "tuple" in kinds:
        return same_tuple(reference, answer, same), "structure"
    if _has_plusminus(reference) or _has_plusminus(answer):
        return _same_items(list(_signs(reference)), list(_signs(answer))), "structure"
    if "unit" in kinds:
        return same_with_unit(reference, answer, same)
    if "degree" in kinds:
        return same_angle(reference, answer, same)
    if "percent" in kinds:
        return same_percent(reference, answer, same)
    if "base" in kinds:
        return same_base(reference, answer), "structure"
    if "ratio" in kinds:
        return same_ratio(reference, answer, same)
    return same_scalar(reference, answer)


_PLAIN = re.compile(r"[^\w]+")


def plain(node: Node) -> str:
    """Words as compared: lower case, without punctuation and article."""
    words = [part.name for part in _leaves(node)]
    text = _PLAIN.sub(" ", " ".join(words).lower()).strip()
    return text.removeprefix("the ").replace(" ", "")


def _leaves(node: Node) -> Iterator[Node]:
    if not node.args or node.kind == "unit":
        yield from (_leaves(node.args[0]) if node.args else ())
        yield Node("text", (), node.name)
    else:
        for part in node.args:
            yield from _leaves(part)


def _has_plusminus(node: Node) -> bool:
    return node.kind == "plusminus" or any(_has_plusminus(part) for part in node.args)


def _signs(node: Node) -> Iterator[Node]:
    """`node` with all its ± as plus, then with all as minus; ∓ the other way."""
    if not _has_plusminus(node):
        yield node
        return
    yield _signed(node, True)
    yield _signed(node, False)


def _signed(node: Node, upper: bool) -> Node:
    parts = tuple(_signed(part, upper) for part in node.args)
    if node.kind != "plusminus":
        return node._replace(args=parts)
    positive = upper == (node.name == "+-")
    last = parts[-1] if positive else negated(parts[-1])
    return last if len(parts) == 1 else Node("sum", (parts[0], last))


def _same_collection(reference: Node, answer: Node) -> bool:
    right, given = _collected(reference), _collected(answer)
    if right is None or given is None:
        return False
    (right_names, right_items), (given_names, given_items) = right, given
    if right_names and given_names:
        if set(right_names) != set(given_names):
            return False
        return all(
            same(item, given_items[given_names.index(name)])[0]
            for name, item in zip(right_names, right_items, strict=True)
        )
    if {_brackets(reference), _brackets(answer)} == {"tuple", "set"}:
        return False
    if (right_names or given_names) or "tuple" in (_brackets(reference), _brackets(answer)):
        return same_in_order(right_items, given_items, same)
    return _same_items(right_items, given_items)


def _brackets(node: Node) -> str:
    return node.kind if node.name != "[]" and not _has_plusminus(node) else "list"


def _collected(node: Node) -> tuple[list[str], list[Node]] | None:
    """Elements of a collection, with their names where every one has a name of its own."""
    if node.kind not in _COLLECTIONS and (node.kind != "tuple" or _has_plusminus(node)):
        return [], list(_signs(_value_of(node)))
    pairs = [named(item) for item in node.args]
    if any(pair is None for pair in pairs):
        return [], list(node.args)
    names = [pair.name for pair in pairs if pair]
    items = [_record(pair.values[-1]) for pair in pairs if pair]
    distinct = len(set(names)) == len(names) > 1 and all(names)
    if distinct:
        return names, items
    if len({name for name in names if name}) > 1:
        return [], list(node.args)
    return [], [signed for item in items for signed in _signs(item)]


def _value_of(node: Node) -> Node:
    found = named(node)
    return found.values[-1] if found else node


def _record(node: Node) -> Node:
    """A list inside a list, `p=5,q=2`, as the tuple of its values."""
    if node.kind != "list":
        return node
    return Node("tuple", tuple(_value_of(item) for item in node.args), "()")


def _same_items(right: list[Node], given: list[Node]) -> bool:
    """Every element of one is in the other, order and repetition aside."""
    if max(len(right), len(given)) > MAX_ITEMS:
        raise TooHard(f"more than {MAX_ITEMS} elements")
    numbers = [_rational(item) for item in right], [_rational(item) for item in given]
    if None not in numbers[0] and None not in numbers[1]:
        if set(numbers[0]) == set(numbers[1]):
            return True
    elif len(right) * len(given) > _MAX_PAIRS:
        return sorted(map(canonical, right)) == sorted(map(canonical, given))
    if len(right) * len(given) > _MAX_PAIRS:
        return False
    return all(any(_equal(one, two) for two in given) for one in right) and all(
        any(_equal(one, two) for one in right) for two in given
    )


def _equal(one: Node, two: Node) -> bool:
    return same(one, two)[0]


def _rational(node: Node) -> object:
    return exact_value(node) if node.kind in ("number", "quotient", "product") else None


def _inequality(node: Node) -> bool:
    if node.kind == "list":
        return any(_inequality(item) for item in node.args)
    return node.kind == "relation" and any(op in node.name for op in ("<", ">", "!="))


def _same_region(reference: Node, answer: Node) -> bool:
    right, given = real_set(reference), real_set(answer)
    if right and given:
        return same_set(right, given)
    if reference.kind == answer.kind == "relation":
        return _same_constraint(reference, answer)
    if reference.kind == answer.kind and reference.kind in _SETS:
        return canonical(reference) == canonical(answer) or _same_parts(reference, answer)
    if reference.kind in _COLLECTIONS and answer.kind in _COLLECTIONS:
        return _same_items(list(reference.args), list(answer.args))
    if "relation" in (reference.kind, answer.kind):
        return _same_membership(reference, answer)
    return False


def _same_membership(reference: Node, answer: Node) -> bool:
    """`x \\in S` against S."""
    right, given = named(reference), named(answer)
    if right is None or given is None or (right.name and given.name):
        return False
    return bool(right.name or given.name) and same(right.values[-1], given.values[-1])[0]


def _same_parts(reference: Node, answer: Node) -> bool:
    """Parts of unions and intersections in any order, of differences in order."""
    right, given = _operands(reference, reference.kind), _operands(answer, answer.kind)
    if reference.kind in ("union", "intersection"):
        return _same_items(right, given)
    return same_in_order(right, given, same)


def _operands(node: Node, kind: str) -> list[Node]:
    if node.kind != kind:
        return [node]
    return [part for argument in node.args for part in _operands(argument, kind)]


def _same_constraint(reference: Node, answer: Node) -> bool:
    """Inequalities with symbols: the same up to a positive factor and turning round."""
    right, given = _difference(reference), _difference(answer)
    if right is None or given is None or right[1] != given[1]:
        return canonical(reference) in (canonical(answer), canonical(_reversed(answer)))
    sign = proportional(right[0], given[0])
    return sign > 0 or (sign < 0 and right[1] in ("!=", "="))


_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _reversed(node: Node) -> Node:
    """A chain of inequalities read from right to left."""
    operators = [_TURNED.get(operator, operator) for operator in node.name.split(" ")]
    return node._replace(args=node.args[::-1], name=" ".join(reversed(operators)))


def _difference(node: Node) -> tuple[Node, str] | None:
    """Left minus right and the relation to 0, "greater" turned into "less"; None for a chain."""
    if len(node.args) != 2:
        return None
    left, right = node.args
    if node.name in (">", ">="):
        left, right = right, left
    operator = {">": "<", ">=": "<=", "~": "="}.get(node.name, node.name)
    return Node("sum", (left, Node("product", (MINUS_ONE, right)))), operator


def _same_relation(reference: Node, answer: Node) -> tuple[bool, str]:
    """Equations: as values where they give a name one, else as constraints."""
    right, given = _stated(reference), _stated(answer)
    if right and given:
        if names_agree(right.name, given.name):
            return _same_stated(right, given)
        if not (right.name and given.name):
            return False, "structure"
    if (right or given) and not (reference.kind == answer.kind == "relation"):
        return False, "structure"
    if reference.kind == answer.kind == "relation" and reference.name == answer.name:
        if canonical(reference) == canonical(answer):
            return True, "structure"
        return _same_constraint(reference, answer), "equation"
    return False, "structure"


def _same_stated(right: Named, given: Named) -> tuple[bool, str]:
    """Equal values; an approximation may stand for its value on either side."""
    equal, step = same(right.values[0], given.values[0])
    if not equal and given.approximate and same(right.values[0], given.approximate[0])[0]:
        return True, step
    if not equal and right.approximate and same(right.approximate[0], given.values[0])[0]:
        return True, step
    return equal, step


def _stated(node: Node) -> Named | None:
    """The value that `node` states, when every link of its chain says the same."""
    found = named(node)
    if found is None or (not found.name and len(found.values) == 1):
        return found
    first, *others = found.values
    if others and not all(_consistent(first, other) for other in others):
        return None
    return found


def _consistent(first: Node, other: Node) -> bool:
    try:
        return same(first, other)[0]
    except (Undecided, TooHard):
        return canonical(first) == canonical(other)


__all__ = ["plain", "same", "spelling"]
