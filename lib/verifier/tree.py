"""The tree that an answer is parsed into, and the limits of work on it.

One node type for all: what an answer can be is open-ended, and rules match on `kind`.

| kind | args | name / value |
|---|---|---|
| number | | value exact; name the literal as written |
| symbol | | name |
| sum, product | terms, factors | |
| quotient, power | two | |
| root | index, radicand | |
| call | arguments | name of the function, of an operation without rules too |
| plusminus | (operand) or (left, right) | name "+-" or "-+" |
| percent, degree, factorial | one | |
| unit | one | name the unit as written |
| amount | units, `5 ft 3 in` | |
| ratio | two or more | |
| list | items | name "," or "or" |
| tuple | items | name the two brackets: "()", "[]", "(]", "[)", "<>" |
| set | items | |
| builder | element, condition | |
| union, intersection, difference | two | |
| relation | operands | name the operators, joined with spaces |
| quantified | statement, membership | |
| cases | tuples (value, condition) | |
| matrix | rows, each a tuple node | name the environment |
| phrase | | name the words as read |
| choice | its text, if any | name the letter |
| time, date | | name in one spelling |
| base | | name digits; value the base |
| calculus | lower, upper, body | name "sum", "prod", "int", "lim" |
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

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

MAX_DEPTH = 50
"""Nesting of groups, fractions, roots, powers and whatever is attached to an atom."""

MAX_ITEMS = 400
"""Elements of one list, set or tuple, after ± is spelled out."""

MAX_DIGITS = 1_500
"""Digits of one number literal."""

MAX_BITS = 100_000
"""Bits of numerator or denominator of an exact value."""

MAX_LOG2 = 1e60
"""Magnitude, as a power of two, of an inexact value: beyond it (or its inverse) undecided."""

MAX_FACTORIAL = 5_000
"""Largest n of an exact n!."""

MAX_OPERATIONS = 6_000
"""Nodes that one comparison evaluates, all points together; a special function counts as many."""

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
    """Cache like `functools.lru_cache`; `bound_memory` empties it, since a cache counts entries,
    not text.
    """

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


def names(text: str) -> frozenset[str]:
    """Return the words of `text`."""
    return frozenset(text.split())


def pairs(text: str) -> dict[str, str]:
    """Return the words of `text`, split at their first equals sign."""
    return dict(word.split("=", 1) for word in text.split())


FUNCTIONS = names(
    "sin cos tan cot sec csc sinh cosh tanh coth sech csch arcsin arccos arctan arccot arcsec"
    " arccsc "
    "arsinh arcosh artanh ln log lg exp sqrt abs floor ceil sgn Gamma max min gcd lcm "
    "factorial factorial2 binomial det Re Im conj mod"
)
"""Functions that are evaluated; whatever else is applied to arguments is opaque."""


def number(value: Fraction | int, literal: str = "") -> Node:
    """Return a number node."""
    return Node("number", (), literal, Fraction(value))


def symbol(name: str) -> Node:
    """Return a symbol node."""
    return Node("symbol", (), name)


def call(name: str, *arguments: Node) -> Node:
    """Return a function applied to arguments."""
    return Node("call", arguments, name)


MINUS_ONE = number(-1)
REALS = symbol("bb:R")
INFINITY = symbol("infinity")


def negated(node: Node) -> Node:
    """Return minus `node`; of a number literal, also under a unit, the negative literal."""
    if node.kind == "number" and node.value is not None:
        # A literal has one sign: minus minus 1 is 1.
        name = node.name[1:] if node.name.startswith("-") else node.name and f"-{node.name}"
        return Node("number", (), name, -node.value)
    if node.kind in ("unit", "percent", "degree"):
        return node._replace(args=(negated(node.args[0]),))
    return Node("product", (MINUS_ONE, node))


def difference(left: Node, right: Node) -> Node:
    """Return left minus right."""
    return Node("sum", (left, negated(right)))


def nodes(node: Node) -> Iterator[Node]:
    """Yield `node` and all its parts."""
    yield node
    for part in node.args:
        yield from nodes(part)


def substituted(node: Node, values: Mapping[str, Node]) -> Node:
    """Return `node` with trees for some of its symbols."""
    if node.kind == "symbol":
        return values.get(node.name, node)
    return node._replace(args=tuple(substituted(part, values) for part in node.args))


def spelled(node: Node) -> str:
    """Return the name of a subscript, an accent or a label: the whole tree, written out."""
    value = node.value if node.value is not None else node.name
    if node.args:
        inside = ",".join(map(spelled, node.args))
        return (
            f"{node.kind}:{node.name}({inside})"
            if node.kind != "call"
            else f"{node.name}({inside})"
        )
    return str(value) if node.kind in ("number", "symbol") else f"{node.kind}:{value}"


@remembered(8192)
def free_symbols(node: Node) -> frozenset[str]:
    """Return the names in `node` without a known value, bound ones excluded."""
    if node.kind == "symbol":
        return frozenset() if node.name in ("pi", "e", "i") else frozenset([node.name])
    inside = frozenset[str]().union(*map(free_symbols, node.args))
    if node.kind == "calculus":
        index = node.args[0].args[0].name if node.args[0].kind == "relation" else ""
        inside -= {index, "infinity"}
    return inside


@remembered(8192)
def is_opaque(node: Node) -> bool:
    """Return True if a part of `node` has no value that could be computed at a point."""
    if node.kind == "call" and node.name not in FUNCTIONS:
        return True
    return node.kind not in VALUED or any(map(is_opaque, node.args))


VALUED = names("number symbol sum product quotient power root call percent degree factorial")
"""Kinds of nodes that have a value at a point."""

_CONSTANTS = ("pi", "e", "i", "infinity", "ldots")
_DIFFERENTIAL = re.compile("d.$|partial .")


def is_name(node: Node) -> bool:
    """Return True if `node` is something that an equation may define rather than constrain."""
    kind, parts = node.kind, node.args
    if kind == "symbol":
        return node.name not in _CONSTANTS and not node.name.startswith("bb:")
    if kind == "call":
        return node.name not in FUNCTIONS or all(part.kind == "symbol" for part in parts)
    if kind == "product":
        return any(part.name.startswith("angle ") for part in parts)
    if kind == "quotient":
        return all(part.kind == "symbol" and _DIFFERENTIAL.match(part.name) for part in parts)
    if kind == "power":
        return parts[0].kind == "symbol" and parts[0].name.isupper() and parts[1].value == -1
    if kind in ("union", "intersection", "ratio", "tuple"):
        return all(map(is_name, parts))
    return kind in ("phrase", "label")
