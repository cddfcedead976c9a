"""Whether two trees say the same: what kind of thing each is, then its parts."""

import re
from collections.abc import Callable, Iterator, Sequence

from lib.verifier.evaluate import exact_value, real_value
from lib.verifier.scalars import decimal_literal, proportional, same_scalar
from lib.verifier.sets import REALS, real_set, same_set
from lib.verifier.tree import (
    MAX_ITEMS,
    Named,
    Node,
    TooHard,
    Undecided,
    canonical,
    difference,
    free_symbols,
    is_name,
    named,
    names_agree,
    negated,
    nodes,
    number,
    operands,
    with_bound_names,
)
from lib.verifier.vocabulary import hedges, may_go_unsaid, parse_unit

_SETS = frozenset(["union", "intersection", "difference", "builder"])
_COLLECTIONS = frozenset(["list", "set"])
_INTERVALS = frozenset(["()", "[]", "(]", "[)"])
_MAX_PAIRS = 2_500


def same(reference: Node, answer: Node) -> tuple[bool, str]:
    """Whether `answer` is as good as `reference`, and the step that decided it.

    Raises:
        Undecided, TooHard: see `same_scalar`.
    """
    if reference == answer:
        return True, "structure"
    if _is_region(reference) or _is_region(answer):
        return _same_region(reference, answer), "structure"
    reference, answer = _by_name(reference), _by_name(answer)
    kinds = {reference.kind, answer.kind}
    if "relation" in kinds:
        return _same_relation(reference, answer)
    if kinds & _COLLECTIONS:
        return _same_collection(reference, answer), "structure"
    if "text" in kinds:
        return _plain(reference) == _plain(answer), "text"
    if "matrix" in kinds or _is_nested(reference) or _is_nested(answer):
        return _same_rows(_rows(reference), _rows(answer)), "structure"
    if "tuple" in kinds:
        return _same_tuple(reference, answer), "structure"
    if _has_plusminus(reference) or _has_plusminus(answer):
        return _same_items(list(_signs(reference)), list(_signs(answer))), "structure"
    if answer.kind == "product" and not free_symbols(reference):
        answer = _quantity(answer)
        kinds.add(answer.kind)
    for kind, rule in _QUANTITIES.items():
        if kind in kinds:
            return rule(reference, answer)
    return same_scalar(reference, answer)


def equal(reference: Node, answer: Node) -> bool:
    """`same` without its step."""
    return same(reference, answer)[0]


def _by_name(node: Node) -> Node:
    """`(y, x) = (2, 1)` as `x = 1, y = 2`; anything else as it is."""
    sides = node.args if node.kind == "relation" and node.name == "=" else ()
    if {side.kind for side in sides} != {"tuple"} or not is_name(sides[0]):
        return node
    pairs = zip(*(side.args for side in sides), strict=False)
    equations = tuple(Node("relation", pair, "=") for pair in sorted(pairs, key=repr))
    return Node("list", equations, ",") if len(sides[0].args) == len(sides[1].args) else node


def _is_region(node: Node) -> bool:
    """A set of numbers that is no list of its elements, or inequalities."""
    is_inequality = node.kind == "relation" and any(op in node.name for op in ("<", ">", "!="))
    return is_inequality or node.kind in _SETS or node == REALS


_PLAIN = re.compile(r"[^\w]+")


def _plain(node: Node) -> str:
    """Words as compared: lower case, without punctuation and article."""
    text = _PLAIN.sub(" ", " ".join(_words(node)).lower()).strip()
    return text.removeprefix("the ").replace(" ", "")


def _words(node: Node) -> Iterator[str]:
    for part in node.args:
        yield from _words(part)
    if not node.args or node.kind in ("unit", "call"):
        yield node.name


def _same_rows(
    expected: list[tuple[Node, ...]] | None, actual: list[tuple[Node, ...]] | None
) -> bool:
    """Matrices of the same shape and entries; a vector may be a row, a column or a tuple."""
    if expected is None or actual is None or len(expected) != len(actual):
        return False
    return all(map(_same_in_order, expected, actual))


def _rows(node: Node) -> list[tuple[Node, ...]] | None:
    """Rows of a matrix; a vector may be written as a tuple, a column or a row."""
    if node.kind == "matrix" or _is_nested(node):
        rows = [row.args for row in node.args]
        if len({len(row) for row in rows}) != 1:
            return None
        return [(item,) for item in rows[0]] if len(rows) == 1 else rows
    if node.kind == "product":
        matrices = [factor for factor in node.args if factor.kind == "matrix"]
        scaled = _rows(matrices[0]) if len(matrices) == 1 else None
        others = tuple(factor for factor in node.args if factor.kind != "matrix")
        return scaled and [tuple(Node("product", (*others, x)) for x in row) for row in scaled]
    return [(item,) for item in node.args] if node.kind in ("tuple", "list") else None


def _is_nested(node: Node) -> bool:
    """A list of rows, `[[1,2],[3,4]]`."""
    return node.kind == "tuple" and all(item.kind == "tuple" for item in node.args)


def _same_in_order(expected: Sequence[Node], actual: Sequence[Node]) -> bool:
    return len(expected) == len(actual) and all(map(equal, expected, actual))


def _same_tuple(reference: Node, answer: Node) -> bool:
    """Same brackets where brackets mean something, and the same elements in the same order."""
    brackets = {reference.name, answer.name}
    if reference.kind != answer.kind:
        return False
    if len(brackets) == 2 == len(reference.args) and brackets <= _INTERVALS:
        return False
    return _same_in_order(reference.args, answer.args)


def _has_plusminus(node: Node) -> bool:
    return any(part.kind == "plusminus" for part in nodes(node))


def _signs(node: Node) -> Iterator[Node]:
    """`node` with all its ± as plus, then with all as minus; ∓ the other way."""
    for upper in (True, False) if _has_plusminus(node) else (True,):
        yield _signed(node, upper)


def _signed(node: Node, upper: bool) -> Node:
    parts = tuple(_signed(part, upper) for part in node.args)
    if node.kind != "plusminus":
        return node._replace(args=parts)
    last = parts[-1] if upper == (node.name == "+-") else negated(parts[-1])
    return last if len(parts) == 1 else Node("sum", (parts[0], last))


def _same_collection(reference: Node, answer: Node) -> bool:
    (fields, expected), (other_fields, actual) = _collected(reference), _collected(answer)
    if fields and other_fields:
        return fields.keys() == other_fields.keys() and all(
            equal(item, other_fields[name]) for name, item in fields.items()
        )
    kinds = {_brackets(reference), _brackets(answer)}
    if kinds & _INTERVALS or kinds == {"tuple", "set"}:
        return False
    if "tuple" in kinds and (_are_alternatives(reference) or _are_alternatives(answer)):
        return False
    if fields or other_fields or "tuple" in kinds:
        return _same_in_order(expected, actual)
    # What a reference lists more than once, such as a prime factor, counts that often.
    is_repeated = "set" not in kinds and len({*map(_key, expected)}) < len(expected)
    return (not is_repeated or len(expected) == len(actual)) and _same_items(expected, actual)


def _are_alternatives(node: Node) -> bool:
    """`x = 1, x = 3` and `1 or 3`: values of one thing, not the parts of a tuple."""
    names = [pair.name for item in node.args if (pair := named(item)) and pair.name]
    return node.kind == "list" and (node.name == "or" or len(set(names)) < len(names))


def _brackets(node: Node) -> str:
    """What kind of collection: `[1, 3]` is an interval, `[1, 2, 3]` and `[5]` are lists."""
    if node.kind != "tuple" or _has_plusminus(node):
        return node.kind
    is_interval = len(node.args) == 2 and node.name in ("[]", "(]", "[)")
    return node.name if is_interval else "list" if node.name == "[]" else "tuple"


def _collected(node: Node) -> tuple[dict[str, Node], list[Node]]:
    """Elements of a collection, by their names where every one has a name of its own."""
    if node.kind not in _COLLECTIONS and (node.kind != "tuple" or _has_plusminus(node)):
        return {}, list(_signs(_value_of(node)))
    pairs = [pair for item in node.args if (pair := _stated(item)) and _approximates(pair)]
    fields = {pair.name: pair.values[-1] for pair in pairs}
    num_names = len(fields.keys() - {""})
    if len(pairs) < len(node.args) or 1 < num_names < len(pairs):
        return {}, list(node.args)
    if num_names > 1:
        return fields, list(fields.values())
    return {}, [signed for pair in pairs for signed in _signs(pair.values[-1])]


def _value_of(node: Node) -> Node:
    pair = named(node)
    return pair.values[-1] if pair else node


def _same_items(expected: list[Node], actual: list[Node]) -> bool:
    """Every element of one is in the other, order and repetition aside."""
    if max(len(expected), len(actual)) > MAX_ITEMS:
        raise TooHard(f"more than {MAX_ITEMS} elements")
    if {*map(_key, expected)} == {*map(_key, actual)}:
        return True
    if len(expected) * len(actual) > _MAX_PAIRS:
        return False
    return all(any(equal(one, two) for two in actual) for one in expected) and all(
        any(equal(one, two) for one in expected) for two in actual
    )


def _key(node: Node) -> object:
    """A value where it is rational, else the tree's text: equal for elements that are equal."""
    value = exact_value(node) if node.kind in ("number", "quotient", "product") else None
    return canonical(node) if value is None else value


def _same_region(reference: Node, answer: Node) -> bool:
    expected, actual = real_set(reference), real_set(answer)
    if expected and actual:
        return same_set(expected, actual)
    if reference.kind == answer.kind == "relation":
        return _same_constraint(reference, answer)
    return False


def _same_constraint(reference: Node, answer: Node) -> bool:
    """Relations with symbols: the same up to a positive factor and turning round."""
    expected, actual = difference(reference), difference(answer)
    if len(reference.args) > 2 and reference.name == answer.name:
        return _same_in_order(reference.args, answer.args)
    if expected is None or actual is None or expected[1] != actual[1]:
        return canonical(reference) == canonical(answer)
    sign = proportional(expected[0], actual[0])
    return sign > 0 or (sign < 0 and expected[1] in ("!=", "="))


def _same_relation(reference: Node, answer: Node) -> tuple[bool, str]:
    """Equations: as values where they give a name one, else as constraints."""
    if reference.kind == answer.kind and reference.args[0].kind == answer.args[0].kind == "call":
        reference, answer = with_bound_names(reference), with_bound_names(answer)
    expected, actual = _stated(reference), _stated(answer)
    if expected and actual:
        if names_agree(expected.name, actual.name):
            return _same_stated(expected, actual)
        if not (expected.name and actual.name):
            return False, "structure"
    if {reference.kind, answer.kind} != {"relation"}:
        return False, "structure"
    if reference.name == answer.name:
        return _same_constraint(reference, answer), "equation"
    return False, "structure"


def _same_stated(expected: Named, actual: Named) -> tuple[bool, str]:
    """Equal values; what is after ≈ counts where it is a decimal, for a decimal reference."""
    if not (_approximates(expected) and _approximates(actual)):
        return False, "structure"
    return same(expected.values[0], actual.values[0])


def _approximates(pair: Named) -> bool:
    """Whether what is after ≈, if anything, is off by less than a unit of its last place."""
    if not pair.approximate:
        return True
    value, literal = real_value(pair.values[0]), decimal_literal(pair.approximate[-1])
    if value is None or literal is None:
        return False
    return abs(value - literal.value) < literal.last_place


def _stated(node: Node) -> Named | None:
    """The value that `node` states, when every link of its chain says the same."""
    pair = named(node)
    if pair is None or (not pair.name and len(pair.values) == 1):
        return pair
    first, *others = pair.values
    return pair if all(_is_consistent(first, other) for other in others) else None


def _is_consistent(first: Node, other: Node) -> bool:
    try:
        return equal(first, other)
    except (Undecided, TooHard):
        return canonical(first) == canonical(other)


def _with_unit(reference: Node, answer: Node) -> tuple[bool, str]:
    """Equal numbers with equal units, converted where both are known; one may leave it unsaid."""
    quantities = _quantity(reference), _quantity(answer)
    expected, actual = (node.name if node.kind == "unit" else "" for node in quantities)
    inner, outer = (node.args[0] if node.kind == "unit" else node for node in quantities)
    units = parse_unit(expected), parse_unit(actual)
    if units[0] and units[1]:
        agree = units[0].dimension == units[1].dimension
        if units[0].factor != units[1].factor:
            outer = Node("product", (outer, number(units[1].factor / units[0].factor)))
    elif expected and actual:
        agree = _singular(expected) == _singular(actual)
    else:
        # A reference may tell what it counts in any words; in an answer they may say anything.
        is_told = bool(expected) and not hedges(expected)
        agree = is_told or may_go_unsaid(expected or actual)
    is_angle = "degree" in (quantities[0].kind, quantities[1].kind)
    return same(inner, outer) if agree and not is_angle else (False, "units")


def _singular(unit: str) -> str:
    return _PLAIN.sub("", unit.lower()).removesuffix("s")


def _quantity(node: Node) -> Node:
    """`5 m` with its unit, where what is after the number is a known one."""
    if node.kind != "product" or len(node.args) != 2:
        return node
    value, unit = node.args
    name = unit.name if unit.kind == "symbol" else "^".join(part.name for part in unit.args)
    return Node("unit", (value,), name) if parse_unit(name) else node


def _angle(reference: Node, answer: Node) -> tuple[bool, str]:
    """Degrees against degrees or bare numbers; against an expression with π also in radians."""
    inner, outer = (x.args[0] if x.kind == "degree" else x for x in (reference, answer))
    verdict = same(inner, outer)
    if (
        verdict[0]
        or reference.kind == answer.kind
        or "pi" not in canonical(reference) + canonical(answer)
    ):
        return verdict
    return same_scalar(reference, answer)


def _percent(reference: Node, answer: Node) -> tuple[bool, str]:
    """`10 %` is both 10 and 0.1; of two percentages the numbers count."""
    if reference.kind == answer.kind:
        return same(reference.args[0], answer.args[0])
    expected, actual = (
        (node, *node.args) if node.kind == "percent" else (node,) for node in (reference, answer)
    )
    return any(same_scalar(one, two)[0] for one in expected for two in actual), "percent"


def _base(reference: Node, answer: Node) -> tuple[bool, str]:
    """Same digits in the same base; base ten may go unsaid."""
    digits = [
        (node.name.lstrip("0"), node.value if node.kind == "base" else 10)
        for node in (reference, answer)
        if node.kind in ("base", "number")
    ]
    return len(digits) == 2 and digits[0] == digits[1], "structure"


def _ratio(reference: Node, answer: Node) -> tuple[bool, str]:
    """Proportional terms; a ratio of two is also the fraction."""
    expected, actual = ([*operands(node, "ratio")] for node in (reference, answer))
    if {len(expected), len(actual)} == {1, 2}:
        expected, actual = ([*terms, number(1)][:2] for terms in (expected, actual))
    crossed = (
        same_scalar(Node("product", (expected[0], two)), Node("product", (actual[0], one)))[0]
        for one, two in zip(expected[1:], actual[1:], strict=False)
    )
    return len(expected) == len(actual) and all(crossed), "ratio"


_QUANTITIES: dict[str, Callable[[Node, Node], tuple[bool, str]]] = {
    "unit": _with_unit,
    "degree": _angle,
    "percent": _percent,
    "base": _base,
    "ratio": _ratio,
}
"""Numbers with something to them, the outermost first."""
