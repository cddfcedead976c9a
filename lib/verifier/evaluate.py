"""Evaluate trees without symbols: exactly, or as balls, intervals that bound the rounding error.

A value is a `Fraction` (1/3 + 1/6 is 1/2) or a `Ball` (√2 is 1.414… ± a radius of about 1e-50).
Sums, products and quotients propagate the ball's radius; a function is evaluated at the middle and
at both ends of the ball. Nothing is simplified.
"""

import functools
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from lib.verifier.tree import (
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
# `-1234.50`, `.5`, `1e5`, `3/4`: numerator and denominator in two groups.
_LITERAL = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?)(?:/(\d+\.?\d*|\.\d+))?")


def as_number(text: str) -> Fraction | None:
    """Return the rational number that `text` spells, or None if it is no plain number.

    Plain numbers are "72", "-1,234.50", ".5", "1e5" and "3/4". LaTeX and words return None
    (`lib.verifier.phrases.read` parses them).
    """
    compact = text.strip()
    if len(compact) > MAX_DIGITS:
        return None
    if _GROUPED.fullmatch(compact):
        compact = compact.replace(",", "")
    match = _LITERAL.fullmatch(compact)
    if match is None:
        return None
    above, below = Fraction(match[1]), Fraction(match[2] or 1)
    return above / below if below else None


class Ball:
    """All numbers within `radius` of `middle`: ball arithmetic on real or complex mpmath numbers.

    An operation returns the ball of its results. `middle.context`, the mpmath context, sets the
    precision of all operations.

    Raises:
        TooHard: |log2| of the middle is above `MAX_LOG2`, or it is no number (NaN).
    """

    __slots__ = ("middle", "radius")

    def __init__(self, middle: Any, radius: Any = 0) -> None:
        size = abs(middle)
        # mag(x) is log2 |x|, rounded up. `not <=` instead of `>`: NaN must be refused too.
        if size and not abs(size.context.mag(size)) <= MAX_LOG2:
            raise TooHard("magnitude")
        self.middle = middle
        # `middle` itself is rounded: 16 units of its last place are a safe bound.
        self.radius = radius + size * middle.context.eps * 16

    def __add__(self, other: Any) -> "Ball":
        other = ball(other, self.middle.context)
        return Ball(self.middle + other.middle, self.radius + other.radius)

    def __mul__(self, other: Any) -> "Ball":
        other = ball(other, self.middle.context)
        # |xy − mn| ≤ |m| s + (|n| + s) r for x within r of m, and y within s of n.
        radius = abs(self.middle) * other.radius + (abs(other.middle) + other.radius) * self.radius
        return Ball(self.middle * other.middle, radius)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> "Ball":
        return Ball(-self.middle, self.radius)

    def conjugate(self) -> "Ball":
        """Return the complex conjugate."""
        return Ball(self.middle.conjugate(), self.radius)

    def __abs__(self) -> "Ball":
        return Ball(abs(self.middle), self.radius)

    def __truediv__(self, other: Any) -> "Ball":
        return self * ball(1 / other, self.middle.context)

    def __rtruediv__(self, other: Fraction | int) -> "Ball":
        size = abs(self.middle)
        if size <= self.radius:
            raise Undecided("division by what may be zero")
        # |1/x − 1/m| ≤ r / (|m| (|m| − r)) for every x within r of m.
        inverse = Ball(1 / self.middle, self.radius / (size * (size - self.radius)))
        return inverse * Fraction(other)

    def __pow__(self, exponent: int) -> "Ball":
        # To first order, the relative error of x^n is n times that of x.
        size = abs(self.middle)
        if size <= self.radius:
            raise Undecided("a power of what may be zero")
        check_power(size, abs(exponent))
        middle = self.middle**exponent
        return Ball(middle, abs(exponent * middle) * (self.radius / size + middle.context.eps))

    @property
    def is_real(self) -> bool:
        """True if the ball contains a real number."""
        return bool(abs(self.middle.imag) <= self.radius)

    def apply(self, name: str) -> "Ball":
        """Return the ball of an analytic function's values on this ball.

        The new radius is the sum of the function's differences between the middle and both ends.

        Args:
            name: the function's name in mpmath, such as "asin".
        """
        function = getattr(self.middle.context, name)
        value = function(self.middle)
        ends = (function(self.middle + end) for end in (self.radius, -self.radius))
        return Ball(value, sum(abs(end - value) for end in ends))


def ball(value: Any, context: Any) -> "Ball":
    """Convert a `Fraction` or Python number to a ball of this mpmath context; a ball stays."""
    if isinstance(value, Fraction):
        return Ball(context.mpf(value.numerator) / value.denominator)
    return value if isinstance(value, Ball) else Ball(context.convert(value))


def check_power(size: Any, exponent: Any) -> None:
    """Raise an error for a power that is too large or too small to compute.

    Args:
        size: absolute value of the base, a number of mpmath.
        exponent: absolute value of the exponent.

    Raises:
        TooHard: the power may be beyond 2^±`MAX_LOG2`.
    """
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
"""Fraction | Ball. `Any`, since the annotations of `Fraction` do not allow to add a `Ball`."""

DIGITS = 50
"""Decimal digits of the first evaluation of a value."""
_COSTLY = 60
"""A special function is counted as this number of operations."""


class Evaluation:
    """One evaluation of a tree with `digits` decimal digits, in at most `MAX_OPERATIONS`.

    Attributes:
        digits: precision of the balls.
        left: number of operations that are left.
    """

    def __init__(self, digits: int) -> None:
        self.digits = digits
        self.left = MAX_OPERATIONS

    def value(self, node: Node) -> Value:
        """Return the value of `node`: a `Fraction` if all its parts have rational values.

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

    def ball(self, value: Value) -> Ball:
        """Return `value` as a ball of this precision; this imports mpmath, which is slow."""
        return ball(value, context_of(self.digits))

    def _applied(self, node: Node) -> Value:
        """Return the value of a constant (π, e, i), or of an operation or function on its parts."""
        if node.kind == "symbol":
            if node.name in ("e", "pi"):
                # Unary plus evaluates mpmath's lazy constant at this precision.
                return Ball(+getattr(context_of(self.digits), node.name))
            if node.name == "i":
                return self.ball(1j)
        name = node.name if node.kind == "call" else node.kind
        values = [self.value(part) for part in node.args]
        if name in _ANALYTIC and len(values) == 1:
            self.count(5)
            # "tan:value" is 1 / tan(x), for cot; "atan:argument" is atan(1 / x), for arccot.
            function, _, inverted = _ANALYTIC[name].partition(":")
            argument = self.ball(values[0])
            # Beyond 2^2000, reducing an argument modulo π is slow.
            if argument.middle and argument.middle.context.mag(argument.middle) > 2_000:
                raise TooHard("a large argument")
            result = (1 / argument if inverted == "argument" else argument).apply(function)
            return 1 / result if inverted == "value" else result
        if name not in _OPERATIONS:
            raise Undecided(f"no value for {name}")
        return _OPERATIONS[name](self, *values)

    def power_of(self, base: Value, exponent: Value) -> Value:
        """Return base ** exponent; of a negative base the real root, if the index is odd.

        (−8)^(1/3) is −2, not the complex principal value.
        """
        if isinstance(exponent, Fraction):
            if isinstance(base, Fraction):
                exact = _rational_power(base, exponent)
                if exact is not None:
                    return exact
            elif exponent.denominator == 1 and abs(exponent) < 10_000:
                return base ** int(exponent)
            # (−8)^(2/3) is 8^(2/3), (−8)^(1/3) is −8^(1/3).
            if exponent.denominator % 2 and _is_negative(base):
                size = self.power_of(-base, exponent)
                return -size if exponent.numerator % 2 else size
        middle = self.ball(base).middle
        if not middle:
            raise Undecided("power of zero")
        # base^exponent = e^(exponent · ln base)
        self.count(5)
        check_power(abs(middle), abs(self.ball(exponent).middle))
        return (self.log(base) * exponent).apply("exp")

    def log(self, value: Value, base: Value = None) -> Value:
        """Return the logarithm to a base, or the natural one without a base."""
        argument = self.ball(value)
        if not argument.middle:
            raise Undecided("logarithm of zero")
        result = argument.apply("log")
        return result if base is None else result / self.log(base)

    def gamma(self, value: Value) -> Value:
        """Return the gamma function at an integer: (n - 1)!."""
        if _integer(value) <= 0:
            raise Undecided("a pole")
        if value > MAX_FACTORIAL:
            raise TooHard(f"factorial of more than {MAX_FACTORIAL}")
        return Fraction(math.factorial(int(value) - 1))

    def binomial(self, above: Value, below: Value) -> Value:
        """Return the binomial coefficient of integers, 0 for a negative `below`."""
        above, below = map(_integer, (above, below))
        # The first product bounds the bits of the result.
        if min(below, above - below) * above.bit_length() > MAX_BITS or above < 0:
            raise TooHard("a binomial")
        return Fraction(math.comb(above, below)) if below >= 0 else Fraction(0)

    def double_factorial(self, value: Value) -> Value:
        """Return n!!, the product of every second integer from n down: 7!! = 7 · 5 · 3 · 1."""
        if not 0 <= _integer(value) <= 5 * MAX_FACTORIAL:
            raise TooHard("double factorial")
        self.count(_COSTLY)
        return Fraction(math.prod(range(int(value), 0, -2)))


def _sized(value: Value) -> Value:
    """Return `value`; raise `TooHard` for a rational of more than `MAX_BITS` bits."""
    if isinstance(value, Fraction) and _bits(value) > MAX_BITS:
        raise TooHard(f"a number of more than {MAX_BITS} bits")
    return value


def _integer(value: Value) -> int:
    """Return an exact integer as an int; raise `Undecided` for any other value."""
    if not isinstance(value, Fraction) or value.denominator != 1:
        raise Undecided("needs integers")
    return int(value)


def _integers(function: Callable[..., int]) -> Callable[..., Fraction]:
    """Wrap a function of ints (gcd, lcm, remainder) as an operation of `_OPERATIONS`.

    Values that are no integers, or too long, raise an error.
    """

    def applied(evaluation: Evaluation, *values: Value) -> Fraction:
        integers = list(map(_integer, values))
        if sum(value.bit_length() for value in integers) > 20_000:
            raise TooHard("integers")
        return Fraction(function(*integers))

    return applied


def _bits(value: Fraction) -> int:
    """Return the bits of the longer of numerator and denominator."""
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _is_negative(value: Value) -> bool:
    """Return True for a negative rational, or a ball with a negative real middle."""
    return value < 0 if isinstance(value, Fraction) else value.is_real and value.middle.real < 0


def _real(value: Value) -> Any:
    """Return a `Fraction` as it is, and of a ball the real part of its middle.

    Raises:
        Undecided: no number of the ball is real.
    """
    if isinstance(value, Fraction):
        return value
    if value.is_real:
        return value.middle.real
    raise Undecided("needs real numbers")


def _fraction(value: Any) -> Fraction:
    """Return a real number of mpmath, or a `Fraction`, as an exact fraction."""
    if isinstance(value, Fraction):
        return value
    if not value.context.isfinite(value):
        raise Undecided("no finite number")
    from mpmath.libmp import to_rational  # type: ignore[import-untyped]

    return Fraction(*to_rational(value._mpf_))


def _step(direction: Callable[[Any], int]) -> Callable[[Evaluation, Value], Fraction]:
    """Wrap `math.floor` or `math.ceil` as an operation of `_OPERATIONS`.

    It is defined for a ball if both ends have the same result, and raises `Undecided` otherwise.
    """

    def rounded(evaluation: Evaluation, value: Value) -> Fraction:
        # As fractions: a float would round the ends.
        middle = _fraction(_real(value))
        radius = 0 if isinstance(value, Fraction) else _fraction(value.radius)
        low, high = (direction(middle + end) for end in (-radius, radius))
        if low != high:
            raise Undecided("rounding of what may be an integer")
        return Fraction(int(low))

    return rounded


def _extreme(sign: int) -> Callable[..., Value]:
    """Return max (sign 1) or min (sign -1) as an operation of `_OPERATIONS`.

    It raises `Undecided` if balls overlap, so that the largest value is uncertain.
    """

    def extreme(evaluation: Evaluation, *values: Value) -> Value:
        # Of several equal values, any is the largest; values that overlap are undecided.
        best = max(values, key=lambda value: sign * _real(evaluation.ball(value)))
        if any(value is not best and value != best and not apart(value, best) for value in values):
            raise Undecided("which is larger")
        return best

    return extreme


def apart(one: Value, two: Value) -> bool:
    """Return True if two values certainly differ: rationals are unequal, balls do not overlap."""
    if isinstance(one, Fraction) and isinstance(two, Fraction):
        return one != two
    # A ball around the difference, whose radius is the sum of both; 0 is outside.
    gap = one + -two
    return bool(abs(gap.middle) > gap.radius)


def precision(one: Value, two: Value) -> float:
    """Return -log2 of the error of one - two: the bits after the point that are certain.

    Infinite if the radius is 0.
    """
    radius = (one + -two).radius
    return -radius.context.mag(radius) if radius else math.inf


def _rational_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    """Return base ** exponent if it is rational and easy to find, else None.

    (8/27)^(2/3) is 4/9; 2^(1/2) is None.

    Raises:
        TooHard: the result would be too long.
    """
    power, index = exponent.as_integer_ratio()
    if not base and not power:
        raise Undecided("0^0")
    if index > 1:
        # A float's root, rounded, is the integer root if the base has few bits; the roots of longer
        # bases are evaluated as balls.
        if base < 0 or _bits(base) > 100:
            return None
        root = Fraction(*(round(part ** (1 / index)) for part in base.as_integer_ratio()))
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
"""mpmath's name of each function; after a colon, which is inverted: its argument or its value."""

# Evaluations by the name of a call or the kind of another node; all values are `Fraction | Ball`.
_OPERATIONS: dict[str, Callable[..., Value]] = {
    "sum": lambda evaluation, *terms: sum(terms, Fraction(0)),
    "product": lambda evaluation, *factors: functools.reduce(
        lambda left, right: _sized(left * right), factors
    ),
    "quotient": lambda evaluation, above, below: above / below,
    "power": Evaluation.power_of,
    "root": lambda evaluation, index, value: evaluation.power_of(value, 1 / index),
    "percent": lambda evaluation, value: value / Fraction(100),
    "degree": lambda evaluation, value: evaluation.value(symbol("pi")) * value / Fraction(180),
    "ln": Evaluation.log,
    "log": Evaluation.log,
    "lg": lambda evaluation, value: evaluation.log(value, Fraction(10)),
    "abs": lambda evaluation, value: abs(value),
    "conj": lambda evaluation, value: value.conjugate(),
    "max": _extreme(1),
    "min": _extreme(-1),
    "floor": _step(math.floor),
    "ceil": _step(math.ceil),
    "binomial": Evaluation.binomial,
    "factorial": lambda evaluation, value: evaluation.gamma(value + Fraction(1)),
    "factorial2": Evaluation.double_factorial,
    "Gamma": Evaluation.gamma,
    "gcd": _integers(math.gcd),
    "lcm": _integers(math.lcm),
    "mod": _integers(lambda value, modulus: value % modulus),
}


@remembered(8192)
def constant(node: Node, digits: int = DIGITS) -> Value:
    """Return the value of a tree without symbols, a `Fraction` or a ball of this precision.

    Raises:
        Undecided, TooHard: see `Evaluation.value`.
    """
    return Evaluation(digits).value(node)


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
    """Return the real number that `node` denotes: exactly, or rounded to `DIGITS` if irrational.

    None if it has no real value, or evaluation fails.
    """
    try:
        value = _real(constant(node))
    except (Undecided, TooHard):
        return None
    # Fraction(float(value)) would keep only 16 digits.
    return _fraction(value)
