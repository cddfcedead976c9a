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

from lib.verifier.numbers import (
    DOUBLES,
    Arithmetic,
    Ball,
    Imprecise,
    Undefined,
    as_rational,
    check_power,
    precise,
)
from lib.verifier.tree import (
    MAX_BITS,
    MAX_FACTORIAL,
    MAX_OPERATIONS,
    MAX_POINT_BITS,
    Node,
    TooHard,
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

    def __init__(self, arithmetic: Arithmetic, values: Mapping[str, Fraction]) -> None:
        self.ball = arithmetic.ball
        self.values = dict(values)
        self.branched = False
        self.operations = 0

    def value(self, node: Node) -> Value:
        """The value of `node`, a rational where no irrational number is met on the way.

        Raises:
            Undefined: there is none.
            TooHard: beyond the limits.
        """
        if node.kind == "number":
            return node.value
        self.operations += 1
        if self.operations > MAX_OPERATIONS:
            raise TooHard(f"more than {MAX_OPERATIONS} operations")
        try:
            return self.sized(self._applied(node))
        except OverflowError as error:
            raise TooHard("overflow") from error
        except ZeroDivisionError as error:
            raise Undefined("division by zero") from error
        except TypeError as error:
            raise Undefined("another number of arguments") from error
        except ValueError as error:
            raise (
                error if isinstance(error, Undefined | TooHard) else Undefined(str(error))
            ) from error

    def sized(self, value: Value) -> Value:
        """`value` within the limits; where functions are compared, long exact values as balls."""
        if isinstance(value, Ball):
            return value
        bits = max(value.numerator.bit_length(), value.denominator.bit_length())
        if bits > MAX_BITS:
            raise TooHard(f"a number of more than {MAX_BITS} bits")
        return self.ball(value) if self.values and bits > MAX_POINT_BITS else value

    def _applied(self, node: Node) -> Value:
        """A symbol's value, or that of an operation or function, its arguments evaluated first.

        A function that is not known is a number that depends on its name, arguments and the point.
        """
        if node.kind == "symbol":
            return self._symbol(node.name)
        name = node.name if node.kind == "call" else node.kind
        if name not in _OPERATIONS and node.kind != "call":
            raise Undefined(f"no value for a {name}")
        if name == "unit" and not may_go_unsaid(node.name):
            raise Undefined(f"no unit is called {node.name}")
        values = [self.value(part) for part in node.args]
        if name in _ANALYTIC:
            function, _, inverse = _ANALYTIC[name].partition(":")
            ball = self.ball(values[0])
            result = (1 / ball if inverse == "argument" else ball).apply(function)
            return 1 / result if inverse == "value" else result
        rule = _OPERATIONS.get(name)
        return rule(self, *values) if rule else self.opaque(name, values)

    def _symbol(self, name: str) -> Value:
        """A constant, or the value at this point."""
        if name in self.values:
            return self.values[name]
        if name in ("e", "pi"):
            return self.ball(Fraction(1)).constant(name)
        if name == "i":
            return self.ball(1j)
        raise Undefined(f"no value for {name}")

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
            if exponent.denominator % 2 and self._is_negative(base):
                self.branched = True
                size = self.power_of(-base, exponent)
                return -size if exponent.numerator % 2 else size
        ball = self.ball(base)
        if not ball.middle:
            if self.ball(exponent).real > 0:
                return base
            raise Undefined("power of zero")
        check_power(abs(ball.middle), abs(self.ball(exponent).middle))
        return (self.log(base) * exponent).apply("exp")

    def _is_negative(self, value: Value) -> bool:
        return value < 0 if isinstance(value, Fraction) else value.is_real and value.real < 0

    def log(self, value: Value, base: Value = None) -> Ball:
        """Logarithm to a base, natural without one."""
        ball = self.ball(value)
        if not ball.middle:
            raise Undefined("logarithm of zero")
        self.branched |= not ball.is_real or ball.real < 0
        result = ball.apply("log")
        return result if base is None else result / self.log(base)

    def gamma(self, value: Value) -> Value:
        """The gamma function."""
        if isinstance(value, Fraction) and value.denominator == 1 and value > 0:
            if value - 1 > MAX_FACTORIAL:
                raise TooHard(f"factorial of more than {MAX_FACTORIAL}")
            return Fraction(math.factorial(int(value) - 1))
        ball = self.ball(value)
        if abs(ball.middle) > 2_000:
            raise TooHard("gamma")
        return ball.apply("gamma")

    def binomial(self, above: Value, below: Value) -> Value:
        """Through gamma where the numbers are not natural, so that symbols may be anything."""
        if _are_integers(above, below) and above >= 0 and below >= 0:
            if above > MAX_FACTORIAL:
                raise TooHard(f"binomial of more than {MAX_FACTORIAL}")
            return Fraction(math.comb(int(above), int(below)))
        one = Fraction(1)
        return self.gamma(above + one) / (
            self.gamma(below + one) * self.gamma(above + -below + one)
        )

    def rounding(self, value: Value, direction: Callable[[Any], int]) -> Value:
        """Floor or ceiling; of a ball only where both ends round alike."""
        if isinstance(value, Fraction):
            return Fraction(direction(value))
        low, high = (direction(self.real(value) + end) for end in (-value.radius, value.radius))
        if low != high:
            raise Imprecise("rounding of what may be an integer")
        return Fraction(int(low))

    def real(self, value: Value) -> Any:
        """A real number, of a ball its middle.

        Raises:
            Undefined: it is complex.
        """
        if isinstance(value, Fraction) or value.is_real:
            return value.real
        raise Undefined("needs real numbers")

    def extreme(self, choose: Callable[..., Any], *values: Value) -> Value:
        """Maximum or minimum."""
        if not all(isinstance(value, Fraction) for value in values):
            values = tuple(map(self.ball, values))
        return choose(values, key=self.real)

    def multiple(self, name: str, *values: Value) -> Value:
        """Gcd and lcm of integers; opaque where functions are compared."""
        if not self.values and _are_integers(*values):
            return Fraction(getattr(math, name)(*map(int, values)))
        return self.opaque(name, sorted(values, key=_rounded))

    def opaque(self, name: str, values: list[Value]) -> Fraction:
        """What stands for an unknown value: another number at each point, and none without one."""
        if not self.values:
            raise Undefined(f"no value for {name}")
        point = sorted(self.values.items())
        return named_number(f"{point}:{name}({','.join(map(_rounded, values))})")


def _are_integers(*values: Value) -> bool:
    return all(isinstance(value, Fraction) and value.denominator == 1 for value in values)


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
    power = exponent.numerator
    if exponent.denominator != 1:
        root = _rational_root(base, exponent.denominator)
        if root is None:
            return None
        base = root
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if base and abs(base) != 1 and abs(power) * bits > MAX_BITS:
        raise TooHard(f"a power of more than {MAX_BITS} bits")
    return base ** (power % 2 if abs(base) == 1 else power)


def _rational_root(value: Fraction, index: int) -> Fraction | None:
    """The real root of a rational where it is rational; of a negative one for odd `index` only."""
    if value < 0:
        root = _rational_root(-value, index) if index % 2 else None
        return None if root is None else -root
    above, below = _integer_root(value.numerator, index), _integer_root(value.denominator, index)
    return None if above is None or below is None else Fraction(above, below)


def _integer_root(value: int, index: int) -> int | None:
    """The root where it is an integer that a double can find."""
    if value.bit_length() > 100:
        return None
    root = round(value ** (1 / index))
    return root if root**index == value else None


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
    "unit": lambda evaluation, value: evaluation.ball(value),
    "ln": Evaluation.log,
    "log": Evaluation.log,
    "lg": lambda evaluation, value: evaluation.log(value, Fraction(10)),
    "abs": lambda evaluation, value: abs(value),
    "max": lambda evaluation, *values: evaluation.extreme(max, *values),
    "min": lambda evaluation, *values: evaluation.extreme(min, *values),
    "floor": lambda evaluation, value: evaluation.rounding(value, math.floor),
    "ceil": lambda evaluation, value: evaluation.rounding(value, math.ceil),
    "binomial": Evaluation.binomial,
    "factorial": lambda evaluation, value: evaluation.gamma(value + Fraction(1)),
    "Gamma": Evaluation.gamma,
    "gcd": lambda evaluation, *values: evaluation.multiple("gcd", *values),
    "lcm": lambda evaluation, *values: evaluation.multiple("lcm", *values),
}


@remembered(8192)
def constant(node: Node) -> Value:
    """The value of a tree without symbols, a ball of doubles where it is not exact.

    Raises:
        Undefined, TooHard: see `Evaluation.value`.
    """
    return Evaluation(DOUBLES, {}).value(node)


def exact_value(node: Node, values: Mapping[str, Fraction] | None = None) -> Fraction | None:
    """The rational number that `node` denotes, None where it is none or is not known to be one.

    Args:
        values: of symbols.

    Raises:
        TooHard: a number or a count on the way is beyond the limits.
    """
    try:
        value = Evaluation(DOUBLES, values).value(node) if values else constant(node)
    except Undefined:
        return None
    return value if isinstance(value, Fraction) else None


def real_value(node: Node) -> Fraction | None:
    """The real number that `node` denotes, to 50 digits where it is not rational; else None."""
    try:
        evaluation = Evaluation(precise(), {})
        value = evaluation.real(evaluation.value(node))
    except (Undefined, TooHard):
        return None
    return value if isinstance(value, Fraction) else as_rational(value)


def approximate(node: Node, values: Mapping[str, Fraction] | None = None) -> complex:
    """The value of a tree as a double.

    Raises:
        Undefined, TooHard: see `Evaluation.value`.
    """
    return complex(DOUBLES.ball(Evaluation(DOUBLES, values or {}).value(node)).middle)
