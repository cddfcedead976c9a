"""Values of trees: exact, or as balls with a bound of the error.

A value is a `Fraction` or a `Ball` (`lib.verifier.numbers`). Sums, products and quotients propagate
the ball's radius, a function is evaluated at both of its ends; nothing is simplified.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import reduce
from typing import Any

from lib.verifier.numbers import Ball, ball, check_power, context_of
from lib.verifier.tree import (
    MAX_BITS,
    MAX_FACTORIAL,
    MAX_OPERATIONS,
    Node,
    TooHard,
    Undecided,
    pairs,
    remembered,
    symbol,
)

Value = Any
"""Fraction | Ball: their operators mix, which no annotation of `Fraction` says."""

DIGITS = 50
"""Precision of a first look."""
_COSTLY = 60
"""Operations that a special function counts as."""


class Work:
    """The number of operations left to all evaluations that share it."""

    def __init__(self, left: int) -> None:
        self.left = left


class Evaluation:
    """Evaluations of trees at one point.

    Attributes:
        branched: a value that is no real number was met, where the point is real.
        low, high: sizes of the smallest and the largest value on the way, in bits.
    """

    def __init__(
        self, values: Mapping[str, Fraction], digits: int = DIGITS, work: "Work | None" = None
    ) -> None:
        self.values = values
        self.branched = False
        self.work = work or Work(MAX_OPERATIONS)
        self.digits = digits
        self.low = self.high = 0.0
        self.max_bits = 2_000 if values else MAX_BITS

    @property
    def context(self) -> Any:
        """Where balls are computed; loads mpmath."""
        return context_of(self.digits)

    def value(self, node: Node) -> Value:
        """Return the value of `node`, a rational where no irrational number is met on the way.

        Raises:
            Undecided: there is none.
            TooHard: beyond the limits.
        """
        if node.kind == "number":
            self._measure(node.value)
            return node.value
        self.count(1)
        try:
            value = self.sized(self._applied(node))
        except (Undecided, TooHard):
            raise
        except (ArithmeticError, TypeError, ValueError) as error:
            # A pole, or another number of arguments.
            raise Undecided(str(error)) from error
        self.branched |= isinstance(value, Ball) and not value.is_real
        self._measure(value)
        return value

    def _measure(self, value: Value) -> None:
        """Keep the smallest and the largest size, where functions are compared."""
        if self.values:
            if isinstance(value, Fraction):
                size = value.numerator.bit_length() - value.denominator.bit_length()
                # A difference of exact values is seen whatever their size.
                size = size if value else 0
            else:
                size = value.middle.context.mag(value.middle) if value.middle else 0
            self.low, self.high = min(self.low, size), max(self.high, size)

    def count(self, operations: int) -> None:
        """Count work.

        Raises:
            TooHard: it is beyond the limit.
        """
        self.work.left -= operations * max(1, self.digits // DIGITS)
        if self.work.left < 0:
            raise TooHard("too many operations")

    def sized(self, value: Value) -> Value:
        """Return `value` within the limits; while comparing functions, long exact values become
        balls.
        """
        if isinstance(value, Ball):
            return value
        bits = _bits(value)
        if bits > (4 * MAX_BITS if self.values else MAX_BITS):
            raise TooHard(f"a number of more than {MAX_BITS} bits")
        return self.ball(value) if bits > self.max_bits else value

    def ball(self, value: Value) -> Ball:
        """Return `value` as a ball of this precision."""
        return ball(value, self.context)

    def argument(self, value: Value, max_bits: int) -> Ball:
        """Return `value` if a function that is slow for large arguments may take it."""
        argument = self.ball(value)
        if argument.middle and argument.middle.context.mag(argument.middle) > max_bits:
            raise TooHard("a large argument")
        return argument

    def _applied(self, node: Node) -> Value:
        """Return a symbol's value, or that of an operation or function, its arguments evaluated
        first.
        """
        if node.kind == "symbol":
            return self._symbol(node.name)
        name = node.name if node.kind == "call" else node.kind
        if name not in _OPERATIONS and name not in _ANALYTIC:
            raise Undecided(f"no value for a {name}")
        values = [self.value(part) for part in node.args]
        if name in _ANALYTIC:
            self.count(5)
            function, _, inverse = _ANALYTIC[name].partition(":")
            argument = self.argument(values[0], 2_000)
            if len(values) > 1:
                raise Undecided("arguments")
            result = (1 / argument if inverse == "argument" else argument).apply(function)
            return 1 / result if inverse == "value" else result
        return _OPERATIONS[name](self, *values)

    def _symbol(self, name: str) -> Value:
        """Return a constant, or the value at this point."""
        if name in self.values:
            return self.values[name]
        if name in ("e", "pi"):
            return Ball(+getattr(self.context, name))
        if name == "i":
            return self.ball(1j)
        raise Undecided(f"no value for {name}")

    def product(self, *factors: Value) -> Value:
        """Multiply the factors, within the limits at each."""
        return reduce(lambda left, right: self.sized(left * right), factors)

    def power_of(self, base: Value, exponent: Value) -> Value:
        """Return base ** exponent; the real root if the root's index is odd."""
        if isinstance(exponent, Fraction):
            if isinstance(base, Fraction):
                exact = _rational_power(base, exponent, self.max_bits)
                if exact is not None:
                    return exact
            elif exponent.denominator == 1 and abs(exponent) < 10_000:
                return base ** int(exponent)
            if exponent.denominator % 2 and _is_negative(base):
                size = self.power_of(-base, exponent)
                return -size if exponent.numerator % 2 else size
        middle = self.ball(base).middle
        if not middle:
            if self.ball(exponent).real > 0:
                return base
            raise Undecided("power of zero")
        self.count(5)
        check_power(abs(middle), abs(self.ball(exponent).middle))
        return (self.log(base) * exponent).apply("exp")

    def log(self, value: Value, base: Value = None) -> Value:
        """Return the logarithm to a base, natural without one."""
        is_rational = isinstance(value, Fraction) and isinstance(base, Fraction)
        if is_rational and (exact := _rational_logarithm(value, base)) is not None:
            return exact
        argument = self.ball(value)
        if not argument.middle:
            raise Undecided("logarithm of zero")
        self.branched |= argument.is_real and argument.real < 0
        result = argument.apply("log")
        return result if base is None else result / self.log(base)

    def gamma(self, value: Value) -> Value:
        """Return the gamma function, exact at integers."""
        if isinstance(value, Fraction) and value.denominator == 1:
            if value <= 0:
                raise Undecided("a pole")
            if value <= MAX_FACTORIAL and not (self.values and value > 300):
                return Fraction(math.factorial(int(value) - 1))
            if not self.values:
                raise TooHard(f"factorial of more than {MAX_FACTORIAL}")
        self.count(_COSTLY)
        return self.argument(value, 80).apply("gamma")

    def binomial(self, above: Value, below: Value) -> Value:
        """Return the binomial coefficient: exact for integers, else through gamma."""
        if (
            all(isinstance(x, Fraction) and x.denominator == 1 for x in (above, below))
            and above >= 0
        ):
            if not 0 <= below <= above:
                if self.values:
                    raise Undecided("a binomial beyond its row")
                return Fraction(0)
            if min(below, above - below) * _bits(above) <= MAX_BITS and not (
                self.values and above > 300
            ):
                return Fraction(math.comb(int(above), int(below)))
        one = Fraction(1)
        return self.gamma(above + one) / (
            self.gamma(below + one) * self.gamma(above + -below + one)
        )

    def double_factorial(self, value: Value) -> Value:
        """Multiply every second integer from `value` down."""
        if not isinstance(value, Fraction) or value.denominator != 1 or not value >= 0:
            raise Undecided("double factorial of what is no natural number")
        if value > 5 * MAX_FACTORIAL:
            raise TooHard("double factorial")
        self.count(_COSTLY)
        return Fraction(math.prod(range(int(value), 0, -2)))


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _is_negative(value: Value) -> bool:
    return value < 0 if isinstance(value, Fraction) else value.is_real and value.real < 0


def _step(direction: Callable[[Any], int]) -> Callable[[Evaluation, Value], Fraction]:
    """Return floor or ceiling; of a ball only if both ends round alike."""

    def rounded(evaluation: Evaluation, value: Value) -> Fraction:
        radius = 0 if isinstance(value, Fraction) else value.radius
        low, high = (direction(_real(value) + end) for end in (-radius, radius))
        if low != high:
            raise Undecided("rounding of what may be an integer")
        return Fraction(int(low))

    return rounded


def _real(value: Value) -> Any:
    """Return a real number, of a ball its middle."""
    if isinstance(value, Fraction) or value.is_real:
        return value.real
    raise Undecided("needs real numbers")


def _extreme(sign: int) -> Callable[..., Value]:
    """Return the max or min of values that are certainly apart."""

    def extreme(evaluation: Evaluation, *values: Value) -> Value:
        best = max(values, key=lambda value: sign * _real(evaluation.ball(value)))
        for value in values:
            gap = evaluation.ball(best) + -value
            if value is not best and value != best and abs(gap.middle) <= gap.radius:
                raise Undecided("which is larger")
        return best

    return extreme


def _integers(function: Callable[..., int]) -> Callable[..., Fraction]:
    """Return gcd, lcm or remainder, of integers only."""

    def applied(evaluation: Evaluation, *values: Value) -> Fraction:
        if not all(isinstance(value, Fraction) and value.denominator == 1 for value in values):
            raise Undecided("needs integers")
        if sum(map(_bits, values)) > 20_000:
            raise TooHard("integers")
        return Fraction(function(*map(int, values)))

    return applied


def _part(name: str) -> Callable[[Evaluation, Value], Value]:
    """Return the real or imaginary part, or the conjugate."""

    def part(evaluation: Evaluation, value: Value) -> Value:
        if isinstance(value, Fraction):
            return Fraction(0) if name == "imag" else value
        context = evaluation.context
        middle = context.conj(value.middle) if name == "conj" else getattr(value.middle, name)
        return Ball(middle, value.radius)

    return part


def _sign(evaluation: Evaluation, value: Value) -> Fraction:
    size = _real(value)
    if not isinstance(value, Fraction) and abs(size) <= value.radius:
        raise Undecided("sign of what may be 0")
    return Fraction((size > 0) - (size < 0))


def _rational_power(base: Fraction, exponent: Fraction, max_bits: int) -> Fraction | None:
    """Return the power where that is rational and real, else None.

    Raises:
        TooHard: the result would be too long.
    """
    power, index = exponent.numerator, exponent.denominator
    if index > 1:
        if base < 0 or _bits(base) > 2_000 or index > 100:
            return None
        roots = [_integer_root(part, index) for part in base.as_integer_ratio()]
        if roots[0] ** index != base.numerator or roots[1] ** index != base.denominator:
            return None
        base = Fraction(*roots)
    if abs(base) == 1:
        return base ** (power % 2)
    if base and abs(power) * _bits(base) > max_bits:
        if max_bits < MAX_BITS:
            return None
        raise TooHard(f"a power of more than {MAX_BITS} bits")
    return base**power


def _rational_logarithm(value: Fraction, base: Fraction) -> Fraction | None:
    """Return the logarithm where it has a small numerator and denominator, else None."""
    if value <= 0 or base <= 0 or base == 1 or max(_bits(value), _bits(base)) > 500:
        return None
    if value == 1:
        return Fraction(0)
    near = Fraction(math.log(value) / math.log(base)).limit_denominator(12)
    if abs(near.numerator) > 2_000 or abs(near.numerator) * _bits(base) > 5_000:
        return None
    return near if base**near.numerator == value**near.denominator else None


def _integer_root(value: int, index: int) -> int:
    """Return the largest integer whose power is at most `value`."""
    if index == 2 or value < 2:
        return math.isqrt(value) if value > 1 else value
    root = 1 << -(-value.bit_length() // index)
    while True:
        smaller = ((index - 1) * root + value // root ** (index - 1)) // index
        if smaller >= root:
            return root
        root = smaller


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
    "ln": Evaluation.log,
    "log": Evaluation.log,
    "lg": lambda evaluation, value: evaluation.log(value, Fraction(10)),
    "abs": lambda evaluation, value: abs(value),
    "max": _extreme(1),
    "min": _extreme(-1),
    "floor": _step(math.floor),
    "ceil": _step(math.ceil),
    "sgn": _sign,
    "binomial": Evaluation.binomial,
    "factorial": lambda evaluation, value: evaluation.gamma(value + Fraction(1)),
    "factorial2": Evaluation.double_factorial,
    "Gamma": Evaluation.gamma,
    "gcd": _integers(math.gcd),
    "lcm": _integers(math.lcm),
    "mod": _integers(lambda value, modulus: value % modulus),
    "Re": _part("real"),
    "Im": _part("imag"),
    "conj": _part("conj"),
}


@remembered(8192)
def constant(node: Node) -> Value:
    """Return the value of a tree without symbols.

    Raises:
        Undecided, TooHard: see `Evaluation.value`.
    """
    return Evaluation({}).value(node)


def exact_value(node: Node) -> Fraction | None:
    """Return the rational number that `node` denotes, or None if it is none or is not known to be
    one.

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
    """Return the real number that `node` denotes, to 50 digits where it is not rational; else
    None.
    """
    try:
        value = _real(constant(node))
    except (Undecided, TooHard):
        return None
    if isinstance(value, Fraction):
        return value
    from mpmath.libmp import to_rational  # type: ignore[import-untyped]

    return Fraction(*to_rational(value._mpf_))
