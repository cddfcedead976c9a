r"""The expression tree of an answer, and the limits of work on it.

All nodes have one type, `Node`, and rules match on `kind`: answers are of too many kinds for
classes. `2x = 5\%` is parsed as

    Node("relation", (product, percent), "="), with
    product = Node("product", (Node("number", (), "2", Fraction(2)), Node("symbol", (), "x")))
    percent = Node("percent", (Node("number", (), "5", Fraction(5)),))

| kind | args | name / value |
|---|---|---|
| number | | value exact; name the literal as written, '' if computed |
| symbol | | name |
| sum, product | terms, factors | |
| quotient, power | two | |
| root | index, radicand | |
| call | arguments | name of the function, of an operation without rules too |
| plusminus | (operand) or (left, right) | name "+-" or "-+" |
| percent, degree, factorial | one | |
| unit | one | name the unit as written |
| ratio | two or more | |
| list | items | name the joint: ",", "or", "and" |
| tuple | items | name the two brackets: "()", "[]", "(]", "[)", "<>"; "row" in a matrix or cases |
| set | items | |
| builder | element, condition | |
| union, intersection | two or more | |
| difference | two | |
| relation | operands | name the operators, joined with spaces: "< <=" of `0 < x <= 1` |
| quantified | statement, membership `n in Z` | |
| label | | name the words before a value, `maximum` of `Maximum: 5` |
| cases | tuples (value, condition) | |
| matrix | rows, each a tuple node | name "matrix", or "stack" without brackets |
| phrase | | name the words as read |
| choice | its text, if any | name the letter |
| base | the base, a number | name digits |
| calculus | lower, upper, body | name "sum", "prod", "int", "oint", "iint", "lim" |
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

# Limits: an answer beyond those of answers equals only its own text. All of them are counts, not
# times, so that a slow machine grades like a fast one.

MAX_ANSWER_CHARS = 4_000
"""Longer answers are compared as text only."""

MAX_COMPLETION_CHARS = 2_000_000
"""Only this many characters at the end of a completion are searched for its answer."""

MAX_REMEMBERED_CHARS = 200_000
"""The caches are emptied after references, answers and problems of this many characters in all."""

MAX_TOKENS = 1_500
"""Tokens of one answer that are parsed."""

MAX_DEPTH = 50
"""Groups, atoms and signs inside one another: `\\frac{1}{2}` has 5."""

MAX_ITEMS = 400
"""Elements of one list, set or tuple."""

MAX_DIGITS = 1_500
"""Digits of one number literal."""

MAX_BITS = 100_000
"""Bits of numerator or denominator of an exact value."""

MAX_LOG2 = 1e60
"""Largest |log2| of an inexact value."""

MAX_FACTORIAL = 5_000
"""Largest n of an exact n!."""

MAX_OPERATIONS = 6_000
"""Nodes, except numbers, that one evaluation of a tree visits.

A sine, an irrational power and their like count as six; a logarithm counts as one.
"""

MAX_SYMBOLIC_NODES = 120
"""Nodes of one question to sympy."""

MAX_SYMBOLIC_EXPONENT = 100
"""Largest exponent in a question to sympy."""

MAX_INTEGRAND_NESTING = 1
"""Depth of functions and roots inside one another, in an integral, limit or sum."""

MAX_CALCULUS = 3
"""Sums, limits and integrals in one question to sympy."""

# The caches that `remembered` made, and the characters of the comparisons since they were emptied.
_caches: list["functools._lru_cache_wrapper[Any]"] = []
_remembered_chars = 0


def remembered(
    maxsize: int,
) -> Callable[[Callable[..., T]], "functools._lru_cache_wrapper[T]"]:
    """Decorate a function like `functools.lru_cache`, and register its cache for `bound_memory`.

    `maxsize` bounds only the number of entries; an entry may be long, so that memory is bounded by
    `bound_memory`.
    """

    def wrap(function: Callable[..., T]) -> "functools._lru_cache_wrapper[T]":
        cached = functools.lru_cache(maxsize)(function)
        _caches.append(cached)
        return cached

    return wrap


def bound_memory(num_chars: int) -> None:
    """Count the characters of a new comparison; empty all caches above `MAX_REMEMBERED_CHARS`.

    Called before each comparison, with the length of its texts.
    """
    global _remembered_chars
    _remembered_chars += num_chars
    if _remembered_chars > MAX_REMEMBERED_CHARS:
        # The new comparison is the first that the emptied caches will hold.
        _remembered_chars = num_chars
        forget()


def forget() -> None:
    """Empty every cache that `remembered` made."""
    for cached in _caches:
        cached.cache_clear()


class Node(NamedTuple):
    """A node of an expression tree, immutable and hashable.

    Attributes:
        kind: one of the kinds in the table at the top.
        args: the child nodes.
        name: a name, operator or literal; its meaning depends on `kind`.
        value: the exact value of a number; else None.
    """

    kind: str
    args: tuple["Node", ...] = ()
    name: str = ""
    value: Fraction | None = None


class Unparsable(ValueError):
    """The text is not an expression that this parser knows; the message says why."""


class Undecided(ValueError):
    """It cannot be decided whether two trees are equal, or a tree cannot be evaluated."""


class TooHard(ValueError):
    """A limit of work is passed; the message names it."""


def names(text: str) -> frozenset[str]:
    """Return the words of `text` as a set: "sin cos" -> {"sin", "cos"}."""
    return frozenset(text.split())


def pairs(text: str) -> dict[str, str]:
    """Return the words "key=value" of `text` as a dict; a value may contain "=".

    "leq=le >=ge" -> {"leq": "le", ">": "ge"}
    """
    return dict(word.split("=", 1) for word in text.split())


FUNCTIONS = names(
    "sin cos tan cot sec csc sinh cosh tanh coth sech csch arcsin arccos arctan arccot arcsec"
    " arccsc "
    "arsinh arcosh artanh ln log lg exp sqrt abs floor ceil sgn Gamma max min gcd lcm "
    "factorial binomial det Re Im"
)
"""Functions that have values; any other name before arguments is an unknown function."""


def number(value: Fraction | int, literal: str = "") -> Node:
    """Return a number node; `literal` is its spelling, '' for a computed number."""
    return Node("number", (), literal, Fraction(value))


def symbol(name: str) -> Node:
    """Return a symbol node."""
    return Node("symbol", (), name)


def call(name: str, *arguments: Node) -> Node:
    """Return the node of the function `name`, applied to arguments: "sin" and x give sin(x)."""
    return Node("call", arguments, name)


MINUS_ONE = number(-1)
REALS = symbol("bb:R")
INFINITY = symbol("infinity")


def negated(node: Node) -> Node:
    """Return -`node`; a number stays a number, also with a unit, a percent or a degree sign."""
    if node.kind == "number" and node.value is not None:
        # The literal changes its sign too: "1" becomes "-1", "-1" becomes "1". An empty name stays
        # empty.
        with_sign = f"-{node.name}" if node.name else ""
        name = node.name[1:] if node.name.startswith("-") else with_sign
        return Node("number", (), name, -node.value)
    if node.kind in ("unit", "percent", "degree"):
        return node._replace(args=(negated(node.args[0]),))
    return Node("product", (MINUS_ONE, node))


def difference(left: Node, right: Node) -> Node:
    """Return the node of left - right: left + (-right)."""
    return Node("sum", (left, negated(right)))


def nodes(node: Node) -> Iterator[Node]:
    """Yield `node` and all its descendants, parents first."""
    yield node
    for part in node.args:
        yield from nodes(part)


def substituted(node: Node, values: Mapping[str, Node]) -> Node:
    """Return `node` with each symbol of a name in `values` replaced by the tree there."""
    if node.kind == "symbol":
        return values.get(node.name, node)
    return node._replace(args=tuple(substituted(part, values) for part in node.args))


def spelled(node: Node) -> str:
    """Write a whole tree as one string: x + 1 as "sum:(x,1)", a symbol as its name.

    Used as a name: of a subscript, an accent, a variable or a label.
    """
    if node.args:
        inside = ",".join(map(spelled, node.args))
        head = node.name if node.kind == "call" else f"{node.kind}:{node.name}"
        return f"{head}({inside})"
    # Digits are spelled as written: x_{01} is not x_1.
    is_plain = node.value is None or node.name.isdigit()
    value = node.name if is_plain else node.value
    return str(value) if node.kind in ("number", "symbol") else f"{node.kind}:{value}"


@remembered(8192)
def free_symbols(node: Node) -> frozenset[str]:
    """Return the names of the symbols in `node`, without pi, e, i and bound indices.

    x + π has {"x"}. Infinity is a symbol here, except in a sum, product, limit or integral. The
    variable of an integral is not bound: ∫ x dx has {"x", "dx"}.
    """
    if node.kind == "symbol":
        return frozenset() if node.name in ("pi", "e", "i") else frozenset([node.name])
    inside = frozenset[str]().union(*map(free_symbols, node.args))
    if node.kind == "calculus":
        # The lower bound of a sum, product or limit is a relation, `k = 1` or `x -> 0`.
        index = node.args[0].args[0].name if node.args[0].kind == "relation" else ""
        # A bound or the point of a limit may be infinity.
        inside -= {index, "infinity"}
    return inside


@remembered(8192)
def is_opaque(node: Node) -> bool:
    """Return True if a part of `node` has no value even if all its symbols have values.

    True for an unknown function, f(x), and for a set, a tuple or a phrase.
    """
    if node.kind == "call" and node.name not in FUNCTIONS:
        return True
    return node.kind not in VALUED or any(map(is_opaque, node.args))


VALUED = names("number symbol sum product quotient power root call percent degree factorial")
"""Kinds of nodes that have a value if their parts have one."""

_CONSTANTS = ("pi", "e", "i", "infinity", "ldots")


def is_name(node: Node) -> bool:
    """Return True if `node` can be the name of a value in an equation: x, f(2) or (x, y).

    `x = 5` states the value of x; x + y is no name, so that `x + y = 5` is a constraint.
    """
    kind, parts = node.kind, node.args
    if kind == "symbol":
        return node.name not in _CONSTANTS and not node.name.startswith("bb:")
    # f(2), of an unknown function; ln has known values, so `\ln x = 2` states nothing about ln.
    if kind == "call":
        return node.name not in FUNCTIONS
    # `(x, y) = (1, 2)`, `a : b = 2 : 3` and `A ∪ B = …` state values of all the names on the left.
    if kind in ("union", "intersection", "ratio", "tuple"):
        return all(map(is_name, parts))
    return kind in ("phrase", "label")
