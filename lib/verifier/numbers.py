"""Numbers: literals as exact rationals, and balls, which carry a bound of their error."""

from __future__ import annotations

import cmath
import math
import re
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from lib.verifier.tree import MAX_DIGITS, MAX_LOG2, TooHard

_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)")
_LITERAL = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?)(?:/(\d+\.?\d*|\.\d+))?")
_PRECISE_DIGITS = 50


def as_number(text: str) -> Fraction | None:
    """The rational that `text` spells, None where it is no plain number.

    Reads "72", "-1,234.50", ".5", "1e5", "3/4". No LaTeX, no words: see `lib.verifier.parse`.
    """
    compact = text.strip()
    if len(compact) > MAX_DIGITS:
        return None
    if "," in compact:
        compact = _GROUPED.sub(lambda match: match[0].replace(",", ""), compact)
    match = _LITERAL.fullmatch(compact)
    if match is None:
        return None
    above, below = Fraction(match[1]), Fraction(match[2] or 1)
    return above / below if below else None


class Undefined(ValueError):
    """The expression has no value at this point: a pole, or a name with no value."""


class Imprecise(Undefined):
    """The ball is too wide to tell; more digits may."""


class Arithmetic(NamedTuple):
    """Numbers of one precision.

    Attributes:
        functions: module or context with sin, asin, exp, log, …
        number: a rational or a complex number in this precision.
        epsilon: relative rounding error of one operation, with some room.
    """

    functions: Any
    number: Callable[[Any], Any]
    gamma: Callable[[Any], Any]
    epsilon: float

    def ball(self, value: Fraction | complex | Ball) -> Ball:
        """`value` as a ball of this precision.

        Raises:
            TooHard: beyond the range of doubles.
        """
        if isinstance(value, Ball):
            return value
        try:
            middle = self.number(value)
        except OverflowError as error:
            raise TooHard("magnitude") from error
        return Ball(middle, self.epsilon * abs(middle), self)


class Ball:
    """All numbers within `radius` of `middle`, which is complex or of mpmath."""

    __slots__ = ("arithmetic", "middle", "radius")

    def __init__(self, middle: Any, radius: Any, arithmetic: Arithmetic) -> None:
        size = abs(middle)
        if size != size or size == math.inf:
            raise TooHard("infinite value")
        if size and not isinstance(size, float) and abs(log2(size)) > MAX_LOG2:
            raise TooHard("magnitude")
        self.middle = middle
        self.radius = radius + arithmetic.epsilon * size
        self.arithmetic = arithmetic

    def __add__(self, other: Fraction | Ball) -> Ball:
        ball = self.arithmetic.ball(other)
        return Ball(self.middle + ball.middle, self.radius + ball.radius, self.arithmetic)

    def __mul__(self, other: Fraction | Ball) -> Ball:
        ball = self.arithmetic.ball(other)
        radius = abs(self.middle) * ball.radius + (abs(ball.middle) + ball.radius) * self.radius
        return Ball(self.middle * ball.middle, radius, self.arithmetic)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Ball:
        return Ball(-self.middle, self.radius, self.arithmetic)

    def __abs__(self) -> Ball:
        return Ball(abs(self.middle), self.radius, self.arithmetic)

    def __truediv__(self, other: Fraction | Ball) -> Ball:
        return self * (1 / other)

    def __rtruediv__(self, other: Fraction | int) -> Ball:
        size = abs(self.middle)
        if size <= self.radius:
            raise Imprecise("division by what may be zero")
        inverse = Ball(
            1 / self.middle, self.radius / (size * (size - self.radius)), self.arithmetic
        )
        return inverse * Fraction(other)

    def __pow__(self, exponent: int) -> Ball:
        size = abs(self.middle)
        if size <= self.radius:
            if exponent < 0:
                raise Imprecise("division by what may be zero")
            return Ball(self.middle * 0, (size + self.radius) ** exponent, self.arithmetic)
        check_power(size, abs(exponent))
        middle = self.middle**exponent
        relative = abs(exponent) * (self.radius / size + self.arithmetic.epsilon)
        return Ball(middle, relative * abs(middle), self.arithmetic)

    @property
    def real(self) -> Any:
        """The real part of the middle."""
        return getattr(self.middle, "real", self.middle)

    @property
    def is_real(self) -> bool:
        """Whether the ball has a real number in it."""
        imaginary = abs(getattr(self.middle, "imag", 0))
        return bool(imaginary <= max(self.radius, 1e-13 * abs(self.middle)))

    def constant(self, name: str) -> Ball:
        """The ball times a constant of the arithmetic, such as pi."""
        return Ball(self.middle * getattr(self.arithmetic.functions, name), 0.0, self.arithmetic)

    def apply(self, name: str) -> Ball:
        """An analytic function by its short name, such as asin, at both ends of the ball."""
        source = self.arithmetic if name == "gamma" else self.arithmetic.functions
        function = getattr(source, name)
        value = function(self.middle)
        spread = sum(
            abs(function(self.middle + end) - value) for end in (self.radius, -self.radius)
        )
        return Ball(value, spread, self.arithmetic)


def check_power(size: Any, exponent: Any) -> None:
    """Refuse a power whose magnitude is beyond the limits.

    Raises:
        TooHard: it is.
    """
    if exponent * abs(log2(size) or 1.0) > MAX_LOG2:
        raise TooHard("power")


def log2(size: Any) -> float:
    """Binary logarithm of a positive number, of one of mpmath up to one."""
    return math.log2(size) if isinstance(size, float) else float(size._mpf_[2] + size._mpf_[3])


def as_rational(real: Any) -> Fraction:
    """A real number of mpmath as the rational that it is."""
    sign, mantissa, exponent, _ = real._mpf_
    return Fraction((-1) ** sign * int(mantissa)) * Fraction(2) ** int(exponent)


def _real_gamma(value: complex) -> complex:
    if value.imag or value.real > 160:
        raise Imprecise("gamma in doubles")
    return complex(math.gamma(value.real))


DOUBLES = Arithmetic(cmath, complex, _real_gamma, 4e-16)
_KEPT = threading.local()


def precise() -> Arithmetic:
    """50 digits by mpmath; one context a thread, since a context is not thread-safe."""
    if not hasattr(_KEPT, "arithmetic"):
        from mpmath.ctx_mp import MPContext  # type: ignore[import-untyped]

        context = MPContext()
        context.dps = _PRECISE_DIGITS

        def number(value: Any) -> Any:
            is_rational = isinstance(value, Fraction)
            return (
                context.mpf(value.numerator) / value.denominator
                if is_rational
                else context.mpc(value)
            )

        _KEPT.arithmetic = Arithmetic(context, number, context.gamma, 1e-48)
    arithmetic: Arithmetic = _KEPT.arithmetic
    return arithmetic
