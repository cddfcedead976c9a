"""Integrals, limits and infinite sums through sympy: the thorough end, run by the worker.

Trees come from this package's parser and become sympy expressions node by node: no text reaches
`sympify`. What sympy leaves unevaluated stays undecided. `lib.verifier.calculus` has refused what
is too large before it comes here.
"""

from __future__ import annotations

from typing import Any

import sympy

from lib.verifier.scalars import Undecided
from lib.verifier.tree import Node

_FUNCTIONS = {
    "sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "cot": sympy.cot, "sec": sympy.sec,
    "csc": sympy.csc, "sinh": sympy.sinh, "cosh": sympy.cosh, "tanh": sympy.tanh,
    "arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan, "ln": sympy.log,
    "log": sympy.log, "exp": sympy.exp, "abs": sympy.Abs, "floor": sympy.floor,
    "ceil": sympy.ceiling, "binomial": sympy.binomial, "Gamma": sympy.gamma, "erf": sympy.erf,
}  # fmt: skip
_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "infinity": sympy.oo}
_DIFFERENTIAL = Node("symbol", (), "d")
_POINTS = (sympy.Rational(7, 10), sympy.Rational(13, 11), sympy.Rational(9, 4))
_DIGITS = 30
_TOLERANCE = sympy.Float("1e-20")


def same_symbolic(reference: Node, answer: Node) -> bool:
    """Whether two expressions with integrals, limits or sums are equal.

    Raises:
        Undecided: sympy finds no closed form.
    """
    right, given = _convert(reference), _convert(answer)
    names = sorted(right.free_symbols | given.free_symbols, key=str)
    for shift in range(len(_POINTS)):
        values = {
            name: _POINTS[(shift + place) % len(_POINTS)] + place
            for place, name in enumerate(names)
        }
        if not _agree(right.subs(values), given.subs(values)):
            return False
        if not names:
            break
    return True


def _agree(right: sympy.Expr, given: sympy.Expr) -> bool:
    one, two = right.evalf(_DIGITS), given.evalf(_DIGITS)
    if not (one.is_number and two.is_number) or one.has(sympy.nan) or two.has(sympy.nan):
        raise Undecided("no numerical value")
    if one.is_infinite or two.is_infinite:
        return bool(one == two)
    size = max(abs(one), abs(two), sympy.Integer(1))
    return bool(abs(one - two) <= _TOLERANCE * size)


def _convert(node: Node) -> sympy.Expr:
    if node.kind == "number" and node.value is not None:
        return sympy.Rational(node.value.numerator, node.value.denominator)
    if node.kind == "symbol":
        return _CONSTANTS.get(node.name) or sympy.Symbol(f"s_{node.name}", positive=True)
    if node.kind == "calculus":
        return _calculus(node)
    parts = [_convert(part) for part in node.args]
    if node.kind == "sum":
        return sympy.Add(*parts)
    if node.kind == "product":
        return sympy.Mul(*parts)
    if node.kind == "quotient":
        return parts[0] / parts[1]
    if node.kind == "power":
        return parts[0] ** parts[1]
    if node.kind == "root":
        return parts[1] ** (1 / parts[0])
    if node.kind == "factorial":
        return sympy.factorial(parts[0])
    if node.kind == "call" and node.name in _FUNCTIONS:
        return _FUNCTIONS[node.name](*parts)
    raise Undecided(f"no symbolic {node.kind}")


def _calculus(node: Node) -> sympy.Expr:
    lower, upper, body = node.args
    if node.name == "int":
        return _integral(lower, upper, body)
    if lower.kind != "relation" or len(lower.args) != 2:
        raise Undecided("bounds")
    name, start = _convert(lower.args[0]), _convert(lower.args[1])
    term = _convert(body)
    if node.name == "lim" and lower.name in ("to", "to+", "to-"):
        side = lower.name[2:] or ("+" if start.is_infinite else "+-")
        return _finished(sympy.limit(term, name, start, side))
    if node.name not in ("sum", "prod") or lower.name != "=":
        raise Undecided(node.name)
    index = sympy.Symbol("index", integer=True, positive=True)
    made = sympy.Sum if node.name == "sum" else sympy.Product
    return _finished(made(term.subs(name, index), (index, start, _convert(upper))).doit())


def _integral(lower: Node, upper: Node, body: Node) -> sympy.Expr:
    integrand, name = _without_differential(body)
    variable = _convert(name)
    if not lower.args and lower.kind == "list":
        raise Undecided("an indefinite integral")
    bounds = (variable, _convert(lower), _convert(upper))
    return _finished(sympy.integrate(_convert(integrand), bounds))


def _without_differential(body: Node) -> tuple[Node, Node]:
    """Integrand and variable of `f dx`, or of `dx` over something."""
    if body.kind == "quotient":
        above, name = _without_differential(body.args[0])
        return Node("quotient", (above, body.args[1])), name
    if body.kind != "product" or len(body.args) < 2 or body.args[-2] != _DIFFERENTIAL:
        raise Undecided("an integral without its variable")
    factors = body.args[:-2]
    return Node("product", factors or (Node("number", (), "1", sympy.Integer(1)),)), body.args[-1]


def _finished(result: Any) -> sympy.Expr:
    if result.has(sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit):
        raise Undecided("no closed form")
    return result
