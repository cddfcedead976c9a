"""Arithmetic of two precisions: doubles, and 50 digits where doubles cannot tell."""

import cmath
import math
import threading
from collections.abc import Callable
from typing import Any, Protocol

from lib.verifier.syntax import TooHard

PRECISE_DIGITS = 50


class Field(Protocol):
    """Arithmetic of one precision."""

    is_double: bool
    pi: Any

    def exp(self, value: Any, /) -> Any:
        """The exponential."""
        ...

    def log(self, value: Any, /) -> Any:
        """The principal natural logarithm."""
        ...

    def gamma(self, value: Any, /) -> Any:
        """The gamma function."""
        ...

    def number(self, value: Any) -> Any:
        """A rational in this arithmetic."""
        ...

    def function(self, name: str) -> Callable[[Any], Any] | None:
        """An elementary function by name."""
        ...


class Doubles:
    """Python's complex numbers, about 15 digits."""

    is_double = True
    pi: Any = math.pi

    def exp(self, value: complex, /) -> complex:
        return cmath.exp(value)

    def log(self, value: complex, /) -> complex:
        return cmath.log(value)

    def number(self, value: Any) -> complex:
        return complex(value)

    def gamma(self, value: complex, /) -> complex:
        if value.imag:
            raise TooHard("gamma of a complex number in doubles")
        return complex(math.gamma(value.real))

    def function(self, name: str) -> Callable[[Any], Any] | None:
        return _CMATH.get(name)


_CMATH: dict[str, Callable[[Any], Any]] = {
    "sin": cmath.sin, "cos": cmath.cos, "tan": cmath.tan,
    "sinh": cmath.sinh, "cosh": cmath.cosh, "tanh": cmath.tanh,
    "arcsin": cmath.asin, "arccos": cmath.acos, "arctan": cmath.atan,
    "arsinh": cmath.asinh, "arcosh": cmath.acosh, "artanh": cmath.atanh,
}  # fmt: skip

_PRECISE_NAMES = {
    **{f"ar{name}": f"a{name}" for name in ("sinh", "cosh", "tanh")},
    **{f"arc{name}": f"a{name}" for name in ("sin", "cos", "tan")},
}

_KEPT = threading.local()


class Precise:
    """mpmath at `PRECISE_DIGITS`; one context a thread, since a context is not thread-safe."""

    is_double = False

    def __init__(self) -> None:
        from mpmath.ctx_mp import MPContext  # type: ignore[import-untyped]

        self.context = MPContext()
        self.context.dps = PRECISE_DIGITS
        self.pi: Any = self.context.pi

    def exp(self, value: Any, /) -> Any:
        return self.context.exp(value)

    def log(self, value: Any, /) -> Any:
        return self.context.log(value)

    def gamma(self, value: Any, /) -> Any:
        return self.context.gamma(value)

    def number(self, value: Any) -> Any:
        if hasattr(value, "numerator"):
            return self.context.mpf(value.numerator) / value.denominator
        return self.context.mpmathify(value)

    def function(self, name: str) -> Callable[[Any], Any] | None:
        if name in _CMATH:
            found: Callable[[Any], Any] = getattr(self.context, _PRECISE_NAMES.get(name, name))
            return found
        return None


def precise_field() -> Precise:
    """The 50-digit arithmetic of this thread."""
    if not hasattr(_KEPT, "field"):
        _KEPT.field = Precise()
    field: Precise = _KEPT.field
    return field


DOUBLES = Doubles()
