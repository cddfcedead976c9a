"""The tree that an answer is parsed into.

One node type for all: what an answer can be is open-ended, and rules match on `kind`.

| kind | args | name / value |
|---|---|---|
| number | | value exact; name the literal as written |
| symbol | | name |
| sum, product | terms, factors | |
| quotient, power | two | |
| root | index, radicand | |
| call | arguments | name of the function |
| plusminus | (operand) or (left, right) | name "+-" or "-+" |
| percent, degree, factorial | one | |
| unit | one | name the unit as written |
| ratio | two or more | |
| list | items | name the last separator: "," ";" "and" "or" |
| tuple | items | name the two brackets: "()", "[]", "(]", "[)", "<>" |
| set | items | |
| builder | variable, condition | |
| union, intersection, difference | two | |
| relation | operands | name the operators, joined with spaces |
| matrix | rows, each a tuple node | name the environment |
| text | | name |
| base | | name digits; value the base |
| calculus | parts | name "sum", "prod", "int", "lim" |
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import NamedTuple


class Node(NamedTuple):
    """One node; see the table above."""

    kind: str
    args: tuple["Node", ...] = ()
    name: str = ""
    value: Fraction | None = None


class Unparsable(ValueError):
    """The text is not an expression that this parser knows; the message says what it met."""


class TooHard(ValueError):
    """A work limit was passed (`lib.verifier.limits`); the message names it."""


def number(value: Fraction | int, literal: str = "") -> Node:
    """A number node."""
    return Node("number", (), literal, Fraction(value))


def symbol(name: str) -> Node:
    """A symbol node."""
    return Node("symbol", (), name)


def call(name: str, *arguments: Node) -> Node:
    """A function applied to arguments."""
    return Node("call", arguments, name)


def negated(node: Node) -> Node:
    """Minus `node`; of a number literal, the negative literal."""
    if node.kind == "number" and node.value is not None:
        return Node("number", (), f"-{node.name}" if node.name else "", -node.value)
    return Node("product", (MINUS_ONE, node))


def operands(node: Node, kind: str) -> Iterator[Node]:
    """The operands that are joined by operations of this kind, however they are nested."""
    if node.kind != kind:
        yield node
        return
    for part in node.args:
        yield from operands(part, kind)


def nodes(node: Node) -> Iterator[Node]:
    """`node` and all its parts."""
    yield node
    for part in node.args:
        yield from nodes(part)


def canonical(node: Node) -> str:
    """A text that equal trees share; the order of terms and factors does not show in it."""
    is_flat = node.kind in ("sum", "product")
    parts = [canonical(part) for part in (operands(node, node.kind) if is_flat else node.args)]
    if is_flat or node.kind in ("set", "union", "intersection"):
        parts.sort()
    label = str(node.value) if node.kind == "number" else f"{node.name}{node.value or ''}"
    return f"{node.kind}:{label}({','.join(parts)})" if parts else f"{node.kind}:{label}"


def substituted(node: Node, values: Mapping[str, Node]) -> Node:
    """`node` with trees for some of its symbols."""
    if node.kind == "symbol":
        return values.get(node.name, node)
    return node._replace(args=tuple(substituted(part, values) for part in node.args))


MINUS_ONE = number(-1)
