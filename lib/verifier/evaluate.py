"""Values of trees: exact where they are exact, with a bound of the error where they are not.

A value is a `Fraction` or a `Ball` (`lib.verifier.numbers`). Sums, products and quotients propagate
the ball's radius, a function is evaluated at both of its ends; nothing is simplified.
"""

import math
import zlib
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import reduce
from typing import Any

from lib.verifier.numbers import Ball, ball, check_power, constant_ball
from lib.verifier.tree import (
    MAX_BITS,
    MAX_FACTORIAL,
    MAX_OPERATIONS,
    MAX_POINT_BITS,
    Node,
    TooHard,
    Undecided,
    remembered,
    symbol,
)
from lib.verifier.vocabulary import may_go_unsaid, pairs

Value = Any
"""Fraction | Ball: their operators mix, which no annotation of `Fraction` says."""


class Evaluation:
    """One evaluation of trees at one point.

    Attributes:
        branched: a root, power or logarithm met a number that is not a positive real.
    """

    def __init__(self, values: Mapping[str, Fraction]) -> None:
        self.values = values
        self.branched = False
        self.operations = 0

    def value(self, node: Node) -> Value:
        """The value of `node`, a rational where no irrational number is met on the way.

        Raises:
            Undecided: there is none.
            TooHard: beyond the limits.
        """
        if node.kind == "number":
            return node.value
        self.operations += 1
        if self.operations > MAX_OPERATIONS:
            raise TooHard(f"more than {MAX_OPERATIONS} operations")
        try:
            return self.sized(self._applied(node))
        except (Undecided, TooHard):
            raise
        except (ArithmeticError, TypeError, ValueError) as error:
            # A pole, or another number of arguments.
            raise Undecided(str(error)) from error

    def sized(self, value: Value) -> Value:
        """`value` within the limits; where functions are compared, long exact values as balls."""
        if isinstance(value, Ball):
            return value
        bits = _bits(value)
        if bits > MAX_BITS:
            raise TooHard(f"a number of more than {MAX_BITS} bits")
        return ball(value) if self.values and bits > MAX_POINT_BITS else value

    def _applied(self, node: Node) -> Value:
        """A symbol's value, or that of an operation or function, its arguments evaluated first.

        A function that is not known is a number that depends on its name, arguments and the point.
        """
        if node.kind == "symbol":
            return self._symbol(node.name)
        name = node.name if node.kind == "call" else node.kind
        if name == "unit" and not may_go_unsaid(node.name):
            raise Undecided(f"no unit is called {node.name}")
        values = [self.value(part) for part in node.args]
        if name in _ANALYTIC:
            function, _, inverse = _ANALYTIC[name].partition(":")
            argument = ball(values[0])
            result = (1 / argument if inverse == "argument" else argument).apply(function)
            return 1 / result if inverse == "value" else result
        if name in _OPERATIONS:
            return _OPERATIONS[name](self, *values)
        if node.kind != "call" or not self.values:
            raise Undecided(f"no value for a {name}")
        # What stands for an unknown value: another number at each point.
        point = sorted(self.values.items())
        return named_number(f"{point}:{name}({','.join(map(_rounded, values))})")

    def _symbol(self, name: str) -> Value:
        """A constant, or the value at this point."""
        if name in self.values:
            return self.values[name]
        if name in ("e", "pi"):
            return constant_ball(name)
        if name == "i":
            return ball(1j)
        raise Undecided(f"no value for {name}")

    def product(self, *factors: Value) -> Value:
        """Multiplies, within the limits at each factor."""
        return reduce(lambda left, right: self.sized(left * right), factors)

    def power_of(self, base: Value, exponent: Value) -> Value:
        """Base ** exponent; the real root where the root's index is odd."""
        if isinstance(exponent, Fraction):
            if isinstance(base, Fraction):
                exact = _rational_power(base, exponent)
                if exact is not None:
                    return exact
            elif exponent.denominator == 1 and abs(exponent) < 10_000:
                return base ** int(exponent)
            if exponent.denominator % 2 and _is_negative(base):
                self.branched = True
                size = self.power_of(-base, exponent)
                return -size if exponent.numerator % 2 else size
        middle = ball(base).middle
        if not middle:
            if ball(exponent).real > 0:
                return base
            raise Undecided("power of zero")
        check_power(abs(middle), abs(ball(exponent).middle))
        return (self.log(base) * exponent).apply("exp")

    def log(self, value: Value, base: Value = None) -> Ball:
        """Logarithm to a base, natural without one."""
        argument = ball(value)
        if not argument.middle:
            raise Undecided("logarithm of zero")
        self.branched |= not argument.is_real or argument.real < 0
        result = argument.apply("log")
        return result if base is None else result / self.log(base)


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _is_negative(value: Value) -> bool:
    return value < 0 if isinstance(value, Fraction) else value.is_real and value.real < 0


def _gamma(value: Value) -> Value:
    """The gamma function, exact at integers."""
    if isinstance(value, Fraction) and value.denominator == 1 and value > 0:
        if value > MAX_FACTORIAL:
            raise TooHard(f"factorial of more than {MAX_FACTORIAL}")
        return Fraction(math.factorial(int(value) - 1))
    argument = ball(value)
    if abs(argument.middle) > 2_000:
        raise TooHard("gamma")
    return argument.apply("gamma")


def _factorial(value: Value) -> Value:
    return _gamma(value + Fraction(1))


def _binomial(above: Value, below: Value) -> Value:
    """Through gamma, so that symbols may be anything."""
    return _factorial(above) / (_factorial(below) * _factorial(above + -below))


def _step(direction: Callable[[Any], int]) -> Callable[[Evaluation, Value], Fraction]:
    """Floor or ceiling; of a ball only where both ends round alike."""

    def rounded(evaluation: Evaluation, value: Value) -> Fraction:
        radius = 0 if isinstance(value, Fraction) else value.radius
        low, high = (direction(_real(value) + end) for end in (-radius, radius))
        if low != high:
            raise Undecided("rounding of what may be an integer")
        return Fraction(int(low))

    return rounded


def _real(value: Value) -> Any:
    """A real number, of a ball its middle."""
    if isinstance(value, Fraction) or value.is_real:
        return value.real
    raise Undecided("needs real numbers")


def _size(value: Value) -> Any:
    return _real(ball(value))


def _multiple(function: Callable[..., int]) -> Callable[..., Fraction]:
    """Gcd and lcm, of integers only."""

    def applied(evaluation: Evaluation, *values: Value) -> Fraction:
        if not all(isinstance(value, Fraction) and value.denominator == 1 for value in values):
            raise Undecided("needs integers")
        return Fraction(function(*map(int, values)))

    return applied


def _rounded(value: Value) -> str:
    number = complex(value.middle if isinstance(value, Ball) else value)
    imaginary = f"{number.imag:+.8e}" if abs(number.imag) > 1e-12 else ""
    return f"{number.real:.8e}{imaginary}"


def named_number(name: str) -> Fraction:
    """A number between 0.3 and 2.7 that depends on a name only, so on no order."""
    return Fraction(300 + zlib.crc32(name.encode()) % 2411, 1000)


def _rational_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    """The power where that is rational and real, else None.

    Raises:
        TooHard: the result would be too long.
    """
    power, index = exponent.numerator, exponent.denominator
    if index > 1:
        if base < 0 or _bits(base) > 100:
            return None
        above, below = (round(part ** (1 / index)) for part in base.as_integer_ratio())
        root = Fraction(above, below)
        if root**index != base:
            return None
        base = root
    if abs(base) == 1:
        return base ** (power % 2)
    if base and abs(power) * _bits(base) > MAX_BITS:
        raise TooHard(f"a power of more than {MAX_BITS} bits")
    return base**power


_ANALYTIC = pairs(
    "sin=sin cos=cos tan=tan sinh=sinh cosh=cosh tanh=tanh exp=exp arcsin=asin arccos=acos "
    "arctan=atan arsinh=asinh arcosh=acosh artanh=atanh cot=tan:value sec=cos:value "
    "csc=sin:value coth=tanh:value sech=cosh:value csch=sinh:value arccot=atan:argument "
    "arcsec=acos:argument arccsc=asin:argument"
)
"""Function of the arithmetic, and what is inverted: its argument or its value."""

_OPERATIONS: dict[str, Callable[..., Value]] = {
    "sum": lambda evaluation, *terms: sum(terms, Fraction(0)),
    "product": Evaluation.product,
    "quotient": lambda evaluation, above, below: above / below,
    "power": Evaluation.power_of,
    "root": lambda evaluation, index, value: evaluation.power_of(value, 1 / index),
    "percent": lambda evaluation, value: value / Fraction(100),
    "degree": lambda evaluation, value: evaluation.value(symbol("pi")) * value / Fraction(180),
    # Not exact, since the unit may scale it.
    "unit": lambda evaluation, value: ball(value),
    "ln": Evaluation.log,
    "log": Evaluation.log,
    "lg": lambda evaluation, value: evaluation.log(value, Fraction(10)),
    "abs": lambda evaluation, value: abs(value),
    "max": lambda evaluation, *values: max(values, key=_size),
    "min": lambda evaluation, *values: min(values, key=_size),
    "floor": _step(math.floor),
    "ceil": _step(math.ceil),
    "binomial": lambda evaluation, above, below: _binomial(above, below),
    "factorial": lambda evaluation, value: _factorial(value),
    "Gamma": lambda evaluation, value: _gamma(value),
    "gcd": _multiple(math.gcd),
    "lcm": _multiple(math.lcm),
}


@remembered(8192)
def constant(node: Node) -> Value:
    """The value of a tree without symbols.

    Raises:
        Undecided, TooHard: see `Evaluation.value`.
    """
    return Evaluation({}).value(node)


def exact_value(node: Node) -> Fraction | None:
    """The rational number that `node` denotes, None where it is none or is not known to be one.

    Raises:
        TooHard: a number or a count on the way is beyond the limits.
    """
    try:
        value = constant(node)
    except Undecided:
        return None
    return value if isinstance(value, Fraction) else None


def real_value(node: Node, values: Mapping[str, Fraction] | None = None) -> Fraction | None:
    """The real number that `node` denotes, to 50 digits where it is not rational; else None."""
    try:
        value = _real(Evaluation(values).value(node) if values else constant(node))
    except (Undecided, TooHard):
        return None
    if isinstance(value, Fraction):
        return value
    from mpmath.libmp import to_rational  # type: ignore[import-untyped]

    return Fraction(*to_rational(value._mpf_))
