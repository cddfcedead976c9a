"""Evaluate trees without symbols: exactly, or as balls, numbers with their rounding error.

A value is a `Fraction` (1/3 + 1/6 is 1/2) or a `Ball` (√2 is 1.414… ± a radius of about 1e-50).
A ball's radius is measured: the value is computed at two precisions. Nothing is simplified.
"""

import functools
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from reckon_verifier.tree import (
    MAX_BITS,
    MAX_DIGITS,
    MAX_FACTORIAL,
    MAX_LOG2,
    MAX_OPERATIONS,
    Node,
    TooHard,
    Undecided,
    pairs,
    remembered,
    symbol,
)

# `-1,234,567.5`; `0,123` and `1234,567` are lists.
_GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_LITERAL = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?)(?:/(\d+\.?\d*|\.\d+))?")


def as_number(text: str) -> Fraction | None:
    """Return the rational number that `text` spells, or None if it is no plain number.

    Plain numbers are "72", "-1,234.50", ".5", "1e5" and "3/4". LaTeX and words return None
    (`reckon_verifier.phrases.read` parses them).
    """
    compact = text.strip()
    if len(compact) > MAX_DIGITS:
        return None
    if _GROUPED.fullmatch(compact):
        compact = compact.replace(",", "")
    match = _LITERAL.fullmatch(compact)
    if match is None:
        return None
    # Group 2 is the denominator, None without a slash. 3/0 is no number.
    above, below = Fraction(match[1]), Fraction(match[2] or 1)
    return above / below if below else None


class Ball(NamedTuple):
    """All numbers within `radius` of `middle`, which are real or complex numbers of mpmath."""

    middle: Any
    radius: Any

    @property
    def has_zero(self) -> bool:
        """True if 0 is in the ball."""
        return bool(abs(self.middle) <= self.radius)


def check_power(size: Any, exponent: Any) -> None:
    """Raise an error for a power that is too large or too small to compute.

    Args:
        size: absolute value of the base, a number of mpmath.
        exponent: absolute value of the exponent.

    Raises:
        TooHard: the power may be beyond 2^±`MAX_LOG2`.
    """
    # mag(x) is log2 x, rounded up. It is 0 for a base from 1/2 to 1, whose powers may be tiny.
    if exponent * abs(size.context.mag(size) or 1) > MAX_LOG2:
        raise TooHard("power")


@functools.lru_cache(16)
def context_of(digits: int) -> Any:
    """Return an mpmath context with a precision of `digits` decimal digits.

    It is this module's own, since any other code may change mpmath's global context.
    """
    from mpmath.ctx_mp import MPContext  # type: ignore[import-untyped]

    context = MPContext()
    context.dps = digits
    return context


Value = Any
"""A `Fraction`, a real or complex number of mpmath, or of a whole tree a `Ball`."""

DIGITS = 50
"""Decimal digits of the first evaluation of a value."""


class Evaluation:
    """One evaluation of a tree with `digits` decimal digits, in at most `MAX_OPERATIONS`.

    Attributes:
        digits: precision of numbers that are no fractions.
        left: number of operations that are left.
    """

    def __init__(self, digits: int) -> None:
        self.digits = digits
        self.left = MAX_OPERATIONS

    def value(self, node: Node) -> Value:
        """Return the value of `node`: a `Fraction` if it is found to be rational.

        Raises:
            Undecided: `node` has no value, or none that is certain.
            TooHard: a limit of work or size is passed.
        """
        if node.kind == "number":
            return node.value
        self.count(1)
        try:
            return _sized(self._applied(node))
        except (Undecided, TooHard):
            # Both are ValueErrors, and the next clause would turn `TooHard` into `Undecided`.
            raise
        except (ArithmeticError, TypeError, ValueError) as error:
            # A pole, or a function with a wrong number of arguments.
            raise Undecided(str(error)) from error

    def count(self, operations: int) -> None:
        """Subtract operations from `left`; at n times `DIGITS`, each counts n times.

        Raises:
            TooHard: none are left.
        """
        self.left -= operations * max(1, self.digits // DIGITS)
        if self.left < 0:
            raise TooHard("too many operations")

    def inexact(self, value: Value) -> Any:
        """Return `value` as a number of mpmath; this imports mpmath, which is slow."""
        return context_of(self.digits).convert(value)

    def _applied(self, node: Node) -> Value:
        """Return the value of a constant (π, e, i), or of an operation or function on its parts."""
        if node.kind == "symbol":
            if node.name in ("e", "pi"):
                # Unary plus evaluates mpmath's lazy constant at this precision.
                return +getattr(context_of(self.digits), node.name)
            if node.name == "i":
                return self.inexact(1j)
        name = node.name if node.kind == "call" else node.kind
        values = [self.value(part) for part in node.args]
        if name in _ANALYTIC and len(values) == 1:
            # A function of mpmath counts as five operations.
            self.count(5)
            function, _, inverted = _ANALYTIC[name].partition(":")
            argument = self.inexact(values[0])
            # Beyond 2^2000, reducing an argument modulo π is slow.
            if argument and argument.context.mag(argument) > 2_000:
                raise TooHard("a large argument")
            applied = getattr(argument.context, function)
            result = applied(1 / argument if inverted == "argument" else argument)
            return 1 / result if inverted == "value" else result
        if name not in _OPERATIONS:
            raise Undecided(f"no value for {name}")
        return _OPERATIONS[name](self, *values)

    def power_of(self, base: Value, exponent: Value) -> Value:
        """Return base ** exponent; of a negative base the real root, if the index is odd.

        (−8)^(1/3) is −2, not the complex principal value.

        Raises:
            Undecided: it is 0^0, or 0 to an irrational power.
            TooHard: the power is too large or too small.
        """
        if isinstance(exponent, Fraction):
            if isinstance(base, Fraction):
                exact = _rational_power(base, exponent)
                if exact is not None:
                    return exact
            # An odd index, the denominator: (−8)^(2/3) is 8^(2/3), (−8)^(1/3) is −8^(1/3).
            if exponent.denominator % 2 and _is_negative(base):
                size = self.power_of(-base, exponent)
                return -size if exponent.numerator % 2 else size
        inexact = self.inexact(base)
        if not inexact:
            raise Undecided("power of zero")
        # base^exponent = e^(exponent · ln base), which counts as five operations.
        self.count(5)
        check_power(abs(inexact), abs(self.inexact(exponent)))
        return inexact.context.exp(self.log(base) * exponent)

    def log(self, value: Value, base: Value = None) -> Value:
        """Return the logarithm to a base, or the natural one without a base."""
        argument = self.inexact(value)
        if not argument:
            raise Undecided("logarithm of zero")
        result = argument.context.log(argument)
        return result if base is None else result / self.log(base)

    def factorial(self, value: Value) -> Value:
        """Return n!.

        Raises:
            Undecided: n is no integer, or is negative.
            TooHard: n is above `MAX_FACTORIAL`.
        """
        if _integer(value) < 0:
            raise Undecided("a pole")
        if value > MAX_FACTORIAL:
            raise TooHard(f"factorial of more than {MAX_FACTORIAL}")
        return Fraction(math.factorial(int(value)))

    def binomial(self, above: Value, below: Value) -> Value:
        """Return the binomial coefficient of integers, 0 for a negative `below`.

        Raises:
            Undecided: a value is no integer.
            TooHard: the result may be too long, or `above` is negative.
        """
        above, below = map(_integer, (above, below))
        # The product bounds the bits of the result: it has min(below, above - below) factors, none
        # above `above`.
        if min(below, above - below) * above.bit_length() > MAX_BITS or above < 0:
            raise TooHard("a binomial")
        return Fraction(math.comb(above, below)) if below >= 0 else Fraction(0)


def _sized(value: Value) -> Value:
    """Return `value`; raise `TooHard` for one that is too long, too large or no number."""
    if isinstance(value, Fraction):
        if _bits(value) > MAX_BITS:
            raise TooHard(f"a number of more than {MAX_BITS} bits")
    # mag(x) is log2 |x|, rounded up. `not <=` instead of `>`: NaN must be refused too.
    elif value and not abs(value.context.mag(value)) <= MAX_LOG2:
        raise TooHard("magnitude")
    return value


def _integer(value: Value) -> int:
    """Return an exact integer as an int; raise `Undecided` for any other value."""
    if not isinstance(value, Fraction) or value.denominator != 1:
        raise Undecided("needs integers")
    return int(value)


def _integers(function: Callable[..., int]) -> Callable[..., Fraction]:
    """Return a function of ints (gcd, lcm) as an operation of `_OPERATIONS`.

    The operation raises `Undecided` for a value that is no integer, and `TooHard` for long ones.
    """

    def applied(evaluation: Evaluation, *values: Value) -> Fraction:
        integers = list(map(_integer, values))
        # The time of gcd and lcm is quadratic in the bits.
        if sum(value.bit_length() for value in integers) > 20_000:
            raise TooHard("integers")
        return Fraction(function(*integers))

    return applied


def _extreme(function: Callable[..., Value]) -> Callable[..., Value]:
    """Return `max` or `min` as an operation of `_OPERATIONS`.

    The result is a `Fraction` only if all values are; else all are compared as numbers of mpmath.
    Of two values that differ by less than a rounding error the wrong one may be chosen: the radius
    of the result (`constant`) covers that difference.
    """

    def applied(evaluation: Evaluation, *values: Value) -> Value:
        are_exact = all(isinstance(value, Fraction) for value in values)
        return function(values if are_exact else map(evaluation.inexact, values))

    return applied


def _bits(value: Fraction) -> int:
    """Return the bits of the longer of numerator and denominator."""
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _is_negative(value: Value) -> bool:
    """Return True for a negative real number.

    A number of mpmath counts as real if its imaginary part is at most a rounding error.
    """
    is_real = isinstance(value, Fraction) or abs(value.imag) <= abs(value) * value.context.eps * 64
    return bool(is_real and value.real < 0)


def gap(one: Value, two: Value) -> Ball:
    """Return the ball around the difference of two values; it has 0 in it if they may be equal."""
    # A `Fraction` is a ball of radius 0.
    sides = [each if isinstance(each, Ball) else Ball(each, 0) for each in (one, two)]
    # `+ -` since mpmath subtracts from no `Fraction`.
    return Ball(sides[0].middle + -sides[1].middle, sides[0].radius + sides[1].radius)


def _rational_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    """Return base ** exponent if it is rational and easy to find, else None.

    (8/27)^(2/3) is 4/9; 2^(1/2) is None.

    Raises:
        Undecided: it is 0^0.
        TooHard: the result would be too long.
    """
    power, index = exponent.as_integer_ratio()
    if not base and not power:
        raise Undecided("0^0")
    if index > 1:
        # For a base of few bits the rounded float is the integer root, if there is one.
        if base < 0 or _bits(base) > 100:
            return None
        root = Fraction(*(round(part ** (1 / index)) for part in base.as_integer_ratio()))
        if root**index != base:
            return None
        base = root
    # 1 and −1 to any power, however large.
    if abs(base) == 1:
        return base ** (power % 2)
    if base and abs(power) * _bits(base) > MAX_BITS:
        raise TooHard(f"a power of more than {MAX_BITS} bits")
    # For 0 to a negative power this raises ZeroDivisionError, which `Evaluation.value` turns into
    # Undecided.
    return base**power


_ANALYTIC = pairs(
    "sin=sin cos=cos tan=tan sinh=sinh cosh=cosh tanh=tanh exp=exp arcsin=asin arccos=acos "
    "arctan=atan arsinh=asinh arcosh=acosh artanh=atanh cot=tan:value sec=cos:value "
    "csc=sin:value coth=tanh:value sech=cosh:value csch=sinh:value "
    "arcsec=acos:argument arccsc=asin:argument"
)
"""mpmath's name of each function; after a colon, which is inverted: its argument or its value."""

_OPERATIONS: dict[str, Callable[..., Value]] = {
    "sum": lambda evaluation, *terms: sum(terms, Fraction(0)),
    "product": lambda evaluation, *factors: functools.reduce(
        lambda left, right: _sized(left * right), factors
    ),
    "quotient": lambda evaluation, above, below: above * (1 / below),
    "power": Evaluation.power_of,
    "root": lambda evaluation, index, value: evaluation.power_of(value, 1 / index),
    "percent": lambda evaluation, value: value / Fraction(100),
    "degree": lambda evaluation, value: evaluation.value(symbol("pi")) * value / 180,
    "ln": Evaluation.log,
    "log": Evaluation.log,
    "lg": lambda evaluation, value: evaluation.log(value, Fraction(10)),
    "abs": lambda evaluation, value: abs(value),
    "max": _extreme(max),
    "min": _extreme(min),
    "binomial": Evaluation.binomial,
    "factorial": Evaluation.factorial,
    "gcd": _integers(math.gcd),
    "lcm": _integers(math.lcm),
}


@remembered(8192)
def constant(node: Node, digits: int = DIGITS) -> Value:
    """Return the value of a tree without symbols, a `Fraction` or a ball of this precision.

    The ball's middle is the value at twice the precision. Its radius is twice the difference from
    the value at this precision, and one rounding error more.

    Raises:
        Undecided, TooHard: see `Evaluation.value`.
    """
    value = Evaluation(digits).value(node)
    if isinstance(value, Fraction):
        return value
    middle = Evaluation(2 * digits).value(node)
    return Ball(middle, 2 * abs(middle - value) + abs(value) * value.context.eps)


def exact_value(node: Node) -> Fraction | None:
    """Return the rational number that `node` denotes, or None if it is not known to be rational.

    1/3 + 1/6 is 1/2; √2 and x are None.

    Raises:
        TooHard: a number or a count on the way is beyond the limits.
    """
    if node.kind == "number":
        return node.value
    try:
        value = constant(node)
    except Undecided:
        return None
    return value if isinstance(value, Fraction) else None


def real_value(node: Node) -> Fraction | None:
    """Return the real number that `node` denotes: exactly, or to twice `DIGITS` if irrational.

    None if it has no real value, or evaluation fails.
    """
    try:
        value = constant(node)
    except (Undecided, TooHard):
        return None
    if isinstance(value, Fraction):
        return value
    # An imaginary part beyond the rounding error: not a real number.
    if abs(value.middle.imag) > value.radius:
        return None
    from mpmath.libmp import to_rational  # type: ignore[import-untyped]

    # (sign, integer, exponent of 2, bits); 2^(tan 1)^99 has an exponent of 19 digits.
    number = value.middle.real._mpf_
    if abs(number[2]) > MAX_BITS:
        return None
    # (numerator, denominator); Fraction(float(value)) would keep only 16 digits.
    return Fraction(*to_rational(number))
