"""Exact rational value of a tree, within the limits."""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from lib.verifier.limits import MAX_BITS, MAX_FACTORIAL, MAX_SUM_TERMS
from lib.verifier.syntax import Node, TooHard

Bindings = Mapping[str, Fraction]
_NOTHING: Bindings = {}


def exact_value(node: Node, bindings: Bindings = _NOTHING) -> Fraction | None:
    """The rational number that `node` denotes, None where it is none or is not known to be one.

    Args:
        node: any tree.
        bindings: values of symbols, for sums and for solving linear relations.

    Raises:
        TooHard: a number or a count on the way is beyond the limits.
    """
    if node.kind == "number":
        return node.value
    rule = _RULES.get(node.kind)
    return None if rule is None else rule(node, bindings)


def _sized(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise TooHard(f"a number of more than {MAX_BITS} bits")
    return value


def _symbol(node: Node, bindings: Bindings) -> Fraction | None:
    return bindings.get(node.name)


def _sum(node: Node, bindings: Bindings) -> Fraction | None:
    total = Fraction(0)
    for term in node.args:
        value = exact_value(term, bindings)
        if value is None:
            return None
        total = _sized(total + value)
    return total


def _product(node: Node, bindings: Bindings) -> Fraction | None:
    total = Fraction(1)
    for factor in node.args:
        value = exact_value(factor, bindings)
        if value is None:
            return None
        total = _sized(total * value)
    return total


def _quotient(node: Node, bindings: Bindings) -> Fraction | None:
    above = exact_value(node.args[0], bindings)
    below = exact_value(node.args[1], bindings)
    return None if above is None or not below else _sized(above / below)


def _power(node: Node, bindings: Bindings) -> Fraction | None:
    base = exact_value(node.args[0], bindings)
    exponent = exact_value(node.args[1], bindings)
    if base is None or exponent is None:
        return None
    return rational_power(base, exponent)


def rational_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    """The power where that is rational and real, else None.

    Raises:
        TooHard: the result would be too long.
    """
    if exponent.denominator != 1:
        base = _rational_root(base, exponent.denominator) or Fraction(0)
        if not base:
            return None
    power = exponent.numerator
    if not base:
        return Fraction(int(power == 0)) if power >= 0 else None
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(base) != 1 and abs(power) * bits > MAX_BITS:
        raise TooHard(f"a power of more than {MAX_BITS} bits")
    return base ** (power % 2 if abs(base) == 1 else power)


def _root(node: Node, bindings: Bindings) -> Fraction | None:
    index = exact_value(node.args[0], bindings)
    radicand = exact_value(node.args[1], bindings)
    if index is None or radicand is None or index.denominator != 1 or index < 1:
        return None
    return radicand and _rational_root(radicand, int(index))


def _rational_root(value: Fraction, index: int) -> Fraction | None:
    """The real root of a rational where it is rational; of a negative one for odd `index` only."""
    if value < 0:
        root = _rational_root(-value, index) if index % 2 else None
        return -root if root is not None else None
    above, below = _integer_root(value.numerator, index), _integer_root(value.denominator, index)
    return None if above is None or below is None else Fraction(above, below)


def _integer_root(value: int, index: int) -> int | None:
    if value < 2:
        return value
    if index == 2:
        root = math.isqrt(value)
        return root if root * root == value else None
    if value.bit_length() <= index or value.bit_length() > 2_000:
        return None
    guess = round(math.exp(math.log(value) / index))
    if guess.bit_length() > 50:
        return None
    return next((root for root in (guess - 1, guess, guess + 1) if root**index == value), None)


def _factorial(node: Node, bindings: Bindings) -> Fraction | None:
    value = exact_value(node.args[0], bindings)
    if value is None or value.denominator != 1 or value < 0:
        return None
    if value > MAX_FACTORIAL:
        raise TooHard(f"factorial of more than {MAX_FACTORIAL}")
    return Fraction(math.factorial(int(value)))


def _percent(node: Node, bindings: Bindings) -> Fraction | None:
    value = exact_value(node.args[0], bindings)
    return None if value is None else value / 100


def _calculus(node: Node, bindings: Bindings) -> Fraction | None:
    """A finite sum or product whose bounds and terms are rational."""
    bounds = summation_bounds(node, bindings)
    if bounds is None:
        return None
    name, first, last = bounds
    total = Fraction(int(node.name == "prod"))
    for index in range(first, last + 1):
        term = exact_value(node.args[2], {**bindings, name: Fraction(index)})
        if term is None:
            return None
        total = _sized(total * term if node.name == "prod" else total + term)
    return total


def summation_bounds(node: Node, bindings: Bindings = _NOTHING) -> tuple[str, int, int] | None:
    """Index name and integer bounds of a finite sum or product, None where it is not one.

    Raises:
        TooHard: more than `MAX_SUM_TERMS` terms.
    """
    lower, upper, _ = node.args
    if node.name not in ("sum", "prod") or lower.kind != "relation" or lower.name != "=":
        return None
    name, first = lower.args[0].name, exact_value(lower.args[1], bindings)
    last = exact_value(upper, bindings)
    if lower.args[0].kind != "symbol" or first is None or last is None:
        return None
    if first.denominator != 1 or last.denominator != 1:
        return None
    if last - first > MAX_SUM_TERMS:
        raise TooHard(f"more than {MAX_SUM_TERMS} terms")
    return name, int(first), int(last)


def _call(node: Node, bindings: Bindings) -> Fraction | None:
    rule = _FUNCTIONS.get(node.name)
    if rule is None:
        return None
    values = []
    for argument in node.args:
        value = exact_value(argument, bindings)
        if value is None:
            return None
        values.append(value)
    return rule(*values) if values else None


def _integers(function: Callable[..., int]) -> Callable[..., Fraction | None]:
    def apply(*values: Fraction) -> Fraction | None:
        if any(value.denominator != 1 for value in values):
            return None
        return Fraction(function(*(int(value) for value in values)))

    return apply


def _binomial(above: Fraction, below: Fraction) -> Fraction | None:
    if above.denominator != 1 or below.denominator != 1 or above < 0 or below < 0:
        return None
    if above > MAX_FACTORIAL:
        raise TooHard(f"binomial of more than {MAX_FACTORIAL}")
    return Fraction(math.comb(int(above), int(below)))


def _mod(value: Fraction, modulus: Fraction) -> Fraction | None:
    return None if not modulus else value % modulus


_FUNCTIONS: dict[str, Callable[..., Fraction | None]] = {
    "abs": abs,
    "floor": lambda value: Fraction(math.floor(value)),
    "ceil": lambda value: Fraction(math.ceil(value)),
    "max": lambda *values: max(values),
    "min": lambda *values: min(values),
    "gcd": _integers(math.gcd),
    "lcm": _integers(math.lcm),
    "sgn": lambda value: Fraction((value > 0) - (value < 0)),
    "factorial": lambda value: _factorial(Node("factorial", (Node("number", (), "", value),)), {}),
    "binomial": _binomial,
    "mod": _mod,
}

_RULES: dict[str, Callable[[Node, Bindings], Fraction | None]] = {
    "symbol": _symbol,
    "sum": _sum,
    "product": _product,
    "quotient": _quotient,
    "power": _power,
    "root": _root,
    "factorial": _factorial,
    "percent": _percent,
    "calculus": _calculus,
    "call": _call,
}
