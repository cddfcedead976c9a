"""Decide which numbers may stand for another one, rounded."""

import re
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from lib.verifier.evaluate import exact_value, real_value
from lib.verifier.tree import Node, free_symbols

MIN_ANSWER_DIGITS = 4
"""Significant digits from which an answer's decimal stands for a reference without a finite one."""
MIN_REFERENCE_DIGITS = 4
"""Significant digits from which a reference with a decimal point is taken for a rounding."""


class Literal(NamedTuple):
    """A number literal: its value, last place, and significant digits."""

    value: Fraction
    last_place: Fraction
    digits: int


def decimal_literal(node: Node) -> Literal | None:
    """Return `node` as a literal if it is digits as written, with a sign or a power of ten; else
    None.
    """
    if node.kind == "product" and len(node.args) == 2:
        left, right = node.args
        if right.kind == "power" and right.args[0].value == 10:
            scale, literal = exact_value(right), decimal_literal(left)
            if literal and scale:
                return Literal(literal.value * scale, literal.last_place * scale, literal.digits)
        return None
    if node.kind != "number" or not node.name or node.value is None:
        return None
    # Decimal keeps trailing zeros: 2.50 has three digits.
    _, digits, exponent = Decimal(node.name).as_tuple()
    return Literal(node.value, Fraction(10) ** int(exponent), len(digits))


def is_rounding(reference: Node, answer: Node, problem: str) -> bool:
    """Return True if one is a decimal that stands for the other.

    A reference with a decimal point is a rounding at its last place; one that is an integer, only
    where the problem asks for it. An exact answer has no finite decimal, or the problem asks.
    """
    if free_symbols(reference) or free_symbols(answer):
        return False
    expected, actual = decimal_literal(reference), decimal_literal(answer)
    values = real_value(reference), real_value(answer)
    if values[0] is None or values[1] is None:
        return False
    places = _places(problem)
    # The problem names the places: an exact answer that rounds to the reference is right.
    if expected and places is not None and actual is None:
        step = Fraction(10) ** -places
        if expected.value == _round(expected.value, step) == _round(values[1], step):
            return True
    if expected and expected.value.denominator > 1 and not _is_finite(answer):
        # With the problem's text at hand three digits are no coincidence.
        minimum = MIN_REFERENCE_DIGITS - bool(problem)
        if expected.digits >= minimum and _round(values[1], expected.last_place) == expected.value:
            return True
    is_long = (
        actual is not None and actual.digits >= MIN_ANSWER_DIGITS and actual.value.denominator > 1
    )
    if actual and is_long and not _is_finite(reference):
        # Rounded to its own last place, either way at a half.
        return abs(values[0] - actual.value) <= actual.last_place / 2
    return False


def _is_finite(node: Node) -> bool:
    """Return True if the value has a decimal that ends, an integer included."""
    value = exact_value(node)
    # A denominator of 2s and 5s only divides a power of ten.
    return value is not None and pow(10, value.denominator.bit_length(), value.denominator) == 0


_PLACES = {
    "integer": 0, "whole": 0, "unit": 0, "one": 0, "tenth": 1, "hundredth": 2, "thousandth": 3,
    "cent": 2, "penny": 2, "ten": -1, "hundred": -2, "thousand": -3,
}  # fmt: skip
_NEAREST = re.compile(r"nearest\s+(\w+?)s?\b")
_DECIMALS = re.compile(r"(\w+)\s+decimal\s+(?:place|digit)", re.I)
_COUNTS = {"one": 1, "two": 2, "three": 3, "four": 4, "1": 1, "2": 2, "3": 3, "4": 4}


def _places(problem: str) -> int | None:
    """Return the decimal places that the problem asks for, or None."""
    nearest = [_PLACES[word] for word in _NEAREST.findall(problem) if word in _PLACES]
    counted = [_COUNTS[word] for word in _DECIMALS.findall(problem) if word in _COUNTS]
    return next(iter([*counted, *nearest]), None)


def _round(value: Fraction, step: Fraction) -> Fraction:
    """Return the multiple of `step` that is nearest, halves away from zero."""
    # Floor of |x| / step + ½.
    scaled = abs(value) / step + Fraction(1, 2)
    return (scaled.numerator // scaled.denominator) * step * (1 if value >= 0 else -1)
