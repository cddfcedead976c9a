"""The tree that an answer is parsed into, the limits of work on it, and the names of its values.

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

import functools
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

from lib.verifier.vocabulary import FUNCTIONS, hedges

T = TypeVar("T")

# Limits: what is beyond them is not equal to anything but its own text. All are counts, none is a
# clock, so that a slow machine grades like a fast one; a reference of a public set stays below a
# tenth of each.

MAX_ANSWER_CHARS = 4_000
"""Longer answers are compared as text only."""

MAX_COMPLETION_CHARS = 2_000_000
"""Longer completions are searched in their last part only."""

MAX_REMEMBERED_CHARS = 200_000
"""Characters of answers after which what was worked out of them is forgotten."""

MAX_TOKENS = 1_500
"""Tokens of one answer that are parsed."""

MAX_DEPTH = 60
"""Nesting of groups, fractions and powers."""

MAX_ITEMS = 400
"""Elements of one list, set or tuple, after ± is spelled out."""

MAX_DIGITS = 1_500
"""Digits of one number literal."""

MAX_BITS = 100_000
"""Bits of numerator or denominator of an exact value."""

MAX_POINT_BITS = 2_000
"""Bits up to which a value stays exact where functions are compared at a point."""

MAX_LOG2 = 3_000.0
"""Magnitude, as a power of two, of an inexact value: beyond it (or its inverse) undecided."""

MAX_FACTORIAL = 5_000
"""Largest n of an exact n!."""

MAX_OPERATIONS = 4_000
"""Nodes that one comparison evaluates, all points together."""

MAX_SYMBOLIC_NODES = 120
"""Nodes of a question that sympy gets to see."""

MAX_SYMBOLIC_EXPONENT = 100
"""Largest exponent and factorial that sympy gets to see."""

MAX_INTEGRAND_NESTING = 1
"""Functions and roots inside one another under an integral."""

MAX_CALCULUS = 3
"""Sums, limits and integrals in one question to sympy."""

_caches: list["functools._lru_cache_wrapper[Any]"] = []
_remembered_chars = 0


def remembered(
    maxsize: int,
) -> Callable[[Callable[..., T]], "functools._lru_cache_wrapper[T]"]:
    """`functools.lru_cache`, emptied by `bound_memory` too: a cache counts entries, not texts."""

    def wrap(function: Callable[..., T]) -> "functools._lru_cache_wrapper[T]":
        _caches.append(cached := functools.lru_cache(maxsize)(function))
        return cached

    return wrap


def bound_memory(num_chars: int) -> None:
    """Empty every cache once the texts behind them are too many; `num_chars` are new."""
    global _remembered_chars
    _remembered_chars += num_chars
    if _remembered_chars > MAX_REMEMBERED_CHARS:
        _remembered_chars = num_chars
        forget()


def forget() -> None:
    """Empty every cache."""
    for cached in _caches:
        cached.cache_clear()


class Node(NamedTuple):
    """One node; see the table above."""

    kind: str
    args: tuple["Node", ...] = ()
    name: str = ""
    value: Fraction | None = None


class Unparsable(ValueError):
    """The text is not an expression that this parser knows; the message says what it met."""


class Undecided(ValueError):
    """There is no value, or the steps up to here cannot tell; the message says why."""


class TooHard(ValueError):
    """A work limit was passed; the message names it."""


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
    """Minus `node`; of a number literal, also under a unit, the negative literal."""
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
    if is_flat or node.kind in ("set", "union", "intersection") or node.name in ("gcd", "lcm"):
        parts.sort()
    label = str(node.value) if node.kind == "number" else f"{node.name}{node.value or ''}"
    return f"{node.kind}:{label}({','.join(parts)})" if parts else f"{node.kind}:{label}"


def substituted(node: Node, values: Mapping[str, Node]) -> Node:
    """`node` with trees for some of its symbols."""
    if node.kind == "symbol":
        return values.get(node.name, node)
    return node._replace(args=tuple(substituted(part, values) for part in node.args))


MINUS_ONE = number(-1)


@remembered(8192)
def free_symbols(node: Node) -> frozenset[str]:
    """Names in `node` with no known number as their value, without indices of sums."""
    if node.kind == "symbol":
        return frozenset() if node.name in ("pi", "e", "i") else frozenset([node.name])
    names = frozenset[str]().union(*map(free_symbols, node.args))
    if node.kind == "calculus":
        index = node.args[0].args[0].name if node.args[0].kind == "relation" else ""
        names -= {index, "infinity"}
    return names


_KNOWN = FUNCTIONS | {"mod"}


@remembered(8192)
def unknown_functions(node: Node) -> frozenset[str]:
    """Functions in `node` that are none of mathematics, as names that a point has a value for."""
    own = node.kind == "call" and node.name not in _KNOWN
    inside = frozenset[str]().union(*map(unknown_functions, node.args))
    return inside | {f"function {node.name}"} if own else inside


_COMPOUND = ("tuple", "ratio", "unit", "union", "intersection")
_CONSTANTS = ("pi", "e", "i", "infinity")


class Named(NamedTuple):
    """Values with the name that the answer gives them, '' without one.

    Attributes:
        approximate: what is written after ≈.
    """

    name: str
    values: tuple[Node, ...]
    approximate: tuple[Node, ...] = ()


def named(node: Node) -> Named | None:
    """The name and the values of a chain of equations, None where it states no value.

    `x = 2 + 3 = 5` has two values, which the caller must find equal.
    """
    if node.kind != "relation":
        return Named("", (node,))
    operators = node.name.split(" ")
    if operators == ["in"]:
        return Named(spelling(node.args[0]), node.args[1:]) if is_name(node.args[0]) else None
    if not set(operators) <= {"=", "~"}:
        return None
    operands = node.args
    first, last = operands[0], operands[-1]
    is_turned = is_name(last) and not (last.kind == "text" or is_name(first) or free_symbols(first))
    if is_turned and "~" not in operators[1:]:
        operands = operands[::-1]
    count = next(
        (n for n, part in enumerate(operands[:-1]) if not is_name(part)), len(operands) - 1
    )
    values, links = operands[count:], operators[count:]
    exact = links.index("~") + 1 if "~" in links else len(values)
    names = dict.fromkeys(map(spelling, operands[:count]))
    return Named(",".join(names), values[:exact], values[exact:])


def spelling(node: Node) -> str:
    """A name as compared with others; of a function without its arguments."""
    if node.kind == "call" and node.name not in FUNCTIONS:
        return f"function:{node.name}"
    return canonical(node)


def is_name(node: Node) -> bool:
    """Whether `node` is something that an equation may define rather than constrain."""
    kind, parts = node.kind, node.args
    if kind == "symbol":
        return node.name not in _CONSTANTS
    if kind == "call":
        return node.name not in FUNCTIONS or all(part.kind == "symbol" for part in parts)
    if kind == "product":
        return _is_product_name(node)
    if kind in ("text", "unit") and hedges(node.name):
        return False
    return kind == "text" or (kind in _COMPOUND and all(map(is_name, parts)))


def _is_product_name(node: Node) -> bool:
    """`AB` (a segment), `m\\angle A`, `f^{-1}(x)`; `xy` is a product."""
    symbols = [part.name for part in node.args if part.kind == "symbol"]
    if any(name.startswith("angle") for name in symbols):
        return True
    return len(symbols) == len(node.args) and all(name[:1].isupper() for name in symbols)


def names_agree(right: str, actual: str) -> bool:
    """Whether two spelled names, '' for none, may name the same thing.

    Two variables must be the same, and two functions; but `y` may be written for `f(x)`, and a
    letter for a quantity that the other answer gives in words or as a segment.
    """
    if not right or not actual or right == actual:
        return True
    kinds = [name.partition(":")[0] for name in (right, actual)]
    if set(kinds) <= {"union", "intersection"}:
        return False
    return kinds[0] != kinds[1] or kinds[0] not in ("symbol", "function")


def with_bound_names(node: Node) -> Node:
    """`node` with the arguments of each function that it defines under names of their own."""
    parts = node.args
    if node.kind == "relation" and parts[0].kind == "call" and is_name(parts[0]):
        values = {
            part.name: symbol(f"argument {number}")
            for number, part in enumerate(parts[0].args)
            if part.kind == "symbol"
        }
        return substituted(node, values)
    return node._replace(args=tuple(map(with_bound_names, parts)))


def difference(node: Node) -> tuple[Node, str] | None:
    """Left minus right and the relation to 0; None for a chain."""
    if len(node.args) != 2:
        return None
    return Node("sum", (node.args[0], negated(node.args[1]))), node.name.replace("~", "=")
