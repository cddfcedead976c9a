"""Numbers: literals as exact rationals, and balls, which carry a bound of their error."""

from __future__ import annotations

import functools
import re
from fractions import Fraction
from typing import Any

from lib.verifier.tree import MAX_DIGITS, MAX_LOG2, TooHard, Undecided

_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)")
_LITERAL = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?)(?:/(\d+\.?\d*|\.\d+))?")


def as_number(text: str) -> Fraction | None:
    """Return the rational that `text` spells, or None if it is no plain number.

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


class Ball:
    """All numbers within `radius` of `middle`, which is real or complex.

    Its precision is its context's, which is the middle's.
    """

    __slots__ = ("middle", "radius")

    def __init__(self, middle: Any, radius: Any = 0) -> None:
        size = abs(middle)
        # Neither infinite nor NaN.
        if size and not abs(size.context.mag(size)) <= MAX_LOG2:
            raise TooHard("magnitude")
        self.middle = middle
        self.radius = radius + size * middle.context.eps * 16

    def __add__(self, other: Fraction | Ball) -> Ball:
        other = self.like(other)
        return Ball(self.middle + other.middle, self.radius + other.radius)

    def __mul__(self, other: Fraction | Ball) -> Ball:
        other = self.like(other)
        radius = abs(self.middle) * other.radius + (abs(other.middle) + other.radius) * self.radius
        return Ball(self.middle * other.middle, radius)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Ball:
        return Ball(-self.middle, self.radius)

    def __abs__(self) -> Ball:
        return Ball(abs(self.middle), self.radius)

    def __truediv__(self, other: Fraction | Ball) -> Ball:
        return self * (1 / other)

    def __rtruediv__(self, other: Fraction | int) -> Ball:
        size = abs(self.middle)
        if size <= self.radius:
            raise Undecided("division by what may be zero")
        inverse = Ball(1 / self.middle, self.radius / (size * (size - self.radius)))
        return inverse * Fraction(other)

    def __pow__(self, exponent: int) -> Ball:
        size = abs(self.middle)
        if size <= self.radius:
            if exponent < 0:
                raise Undecided("division by what may be zero")
            return Ball(self.middle * 0, (size + self.radius) ** exponent)
        check_power(size, abs(exponent))
        middle = self.middle**exponent
        return Ball(middle, abs(exponent * middle) * (self.radius / size + middle.context.eps))

    def like(self, other: Fraction | Ball) -> Ball:
        """Return `other` as a ball of this precision."""
        return ball(other, self.middle.context)

    @property
    def real(self) -> Any:
        """The real part of the middle."""
        return self.middle.real

    @property
    def is_real(self) -> bool:
        """True if the ball has a real number in it."""
        return bool(abs(self.middle.imag) <= self.radius)

    def apply(self, name: str) -> Ball:
        """Return an analytic function by its short name, such as asin, at both ends of the ball."""
        function = getattr(self.middle.context, name)
        value = function(self.middle)
        ends = (function(self.middle + end) for end in (self.radius, -self.radius))
        return Ball(value, sum(abs(end - value) for end in ends))


def ball(value: Fraction | complex | Ball, context: Any) -> Ball:
    """Return `value` as a ball."""
    if isinstance(value, Fraction):
        return Ball(context.mpf(value.numerator) / value.denominator)
    return value if isinstance(value, Ball) else Ball(context.convert(value))


def check_power(size: Any, exponent: Any) -> None:
    """Refuse a power whose magnitude is beyond the limits.

    Raises:
        TooHard: it is.
    """
    if exponent * abs(size.context.mag(size) or 1) > MAX_LOG2:
        raise TooHard("power")


@functools.lru_cache(16)
def context_of(digits: int) -> Any:
    """Return an mpmath context of our own: other users of mpmath may change the precision of
    theirs.
    """
    from mpmath.ctx_mp import MPContext  # type: ignore[import-untyped]

    context = MPContext()
    context.dps = digits
    return context
