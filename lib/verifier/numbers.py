"""Number literals as exact rationals: the cheap end of the cascade."""

import re
from fractions import Fraction

from lib.verifier.limits import MAX_DIGITS

_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)")
_LITERAL = re.compile(
    r"([-+]?)(\d+(?:\.\d*)?|\.\d+)(?:[eE]([-+]?\d{1,4}))?(?:/(\d+(?:\.\d*)?|\.\d+))?"
)
_MAX_EXPONENT = MAX_DIGITS


def as_number(text: str) -> Fraction | None:
    """The rational that `text` spells, None where it is no plain number.

    Reads "72", "-1,234.50", ".5", "1e5", "3/4". No LaTeX, no words: see `lib.verifier.parse`.
    """
    compact = text.strip()
    if not compact or len(compact) > MAX_DIGITS:
        return None
    if "," in compact:
        compact = _GROUPED.sub(lambda found: found[0].replace(",", ""), compact)
    found = _LITERAL.fullmatch(compact)
    return None if found is None else _value(found)


def decimal_value(digits: str, exponent: int = 0) -> Fraction | None:
    """The exact value of decimal digits times a power of ten, None beyond the limits."""
    if len(digits) > MAX_DIGITS or abs(exponent) > _MAX_EXPONENT:
        return None
    whole, _, part = digits.partition(".")
    scaled = exponent - len(part)
    number = int(whole + part or "0")
    return Fraction(number * 10**scaled) if scaled >= 0 else Fraction(number, 10**-scaled)


def _value(found: re.Match[str]) -> Fraction | None:
    sign, digits, exponent, below = found.groups()
    value = decimal_value(digits, int(exponent or 0))
    divisor = decimal_value(below) if below else Fraction(1)
    if value is None or not divisor:
        return None
    return -value / divisor if sign == "-" else value / divisor
