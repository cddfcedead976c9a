"""Names that an answer gives its values: `x = 5`, `f(x) = x + 1`, `(p, q) = (3, 2)`, `x \\in S`."""

from typing import NamedTuple

from lib.verifier.evaluate import free_symbols
from lib.verifier.tree import Node, canonical
from lib.verifier.vocabulary import FUNCTIONS


class Named(NamedTuple):
    """A value with the name that the answer gives it; '' without one."""

    name: str
    values: tuple[Node, ...]
    approximate: tuple[Node, ...] = ()


def named(node: Node) -> Named | None:
    """The name and the values of a chain of equations, None where it states no value.

    `x = 2 + 3 = 5` has two values, which the caller must find equal. After ≈ stand approximations.
    """
    if node.kind != "relation":
        return Named("", (node,))
    operators = node.name.split(" ")
    if operators == ["in"]:
        return Named(spelling(node.args[0]), node.args[1:]) if is_name(node.args[0]) else None
    if any(operator not in ("=", "~") for operator in operators):
        return None
    first, *others = node.args
    if is_name(first):
        return _split(spelling(first), tuple(others), operators[1:])
    if len(node.args) == 2 and is_name(node.args[1]) and not free_symbols(first):
        return Named(spelling(node.args[1]), (first,))
    return _split("", node.args, operators)


def _split(name: str, operands: tuple[Node, ...], operators: list[str]) -> Named:
    exact = operators.index("~") + 1 if "~" in operators else len(operands)
    return Named(name, operands[:exact], operands[exact:])


def spelling(node: Node) -> str:
    """A name as compared with others; of a function without its arguments."""
    if node.kind == "call" and node.name not in FUNCTIONS:
        return f"function:{node.name}"
    return canonical(node)


def is_name(node: Node) -> bool:
    """Whether `node` is something that an equation may define rather than constrain."""
    rule = _RULES.get(node.kind)
    return rule is not None and rule(node)


def names_agree(right: str, given: str) -> bool:
    """Whether two spelled names, '' for none, may name the same thing.

    Two variables must be the same, and two functions; but `y` may stand for `f(x)`, and a letter
    for a quantity that the other answer gives in words or as a segment.
    """
    if not right or not given or right == given:
        return True
    kinds = [name.partition(":")[0] for name in (right, given)]
    return kinds[0] != kinds[1] or kinds[0] not in ("symbol", "function")


def _symbol(node: Node) -> bool:
    return node.name not in ("pi", "e", "i", "infinity")


def _call(node: Node) -> bool:
    if node.name == "abs":
        return is_name(node.args[0]) and node.args[0].kind == "product"
    return node.name not in FUNCTIONS or all(part.kind == "symbol" for part in node.args)


def _product(node: Node) -> bool:
    """`AB` (a segment), `m\\angle A`, `f^{-1}(x)`; `xy` is a product."""
    if any(part.kind == "symbol" and part.name.startswith("angle") for part in node.args):
        return True
    first = node.args[0]
    if first.kind == "power" and first.args[0].kind == "symbol":
        return first.args[1].value == -1 and all(part.kind == "symbol" for part in node.args[1:])
    return all(part.kind == "symbol" and part.name[:1].isupper() for part in node.args)


def _derivative(node: Node) -> bool:
    return all(
        part.kind == "product" and part.args[0] in (_D, _PARTIAL) and len(part.args) == 2
        for part in node.args
    )


def _all_names(node: Node) -> bool:
    return all(is_name(part) for part in node.args)


_D, _PARTIAL = Node("symbol", (), "d"), Node("symbol", (), "partial")
_RULES = {
    "symbol": _symbol,
    "call": _call,
    "product": _product,
    "quotient": _derivative,
    "tuple": _all_names,
    "ratio": _all_names,
    "text": lambda node: True,
    "unit": _all_names,
}
