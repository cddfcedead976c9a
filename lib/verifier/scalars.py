"""Whether two expressions denote the same number, or the same function of their symbols.

Functions are equal when their values agree at several points, each symbol set to a rational that
depends on its name only. Chance agreement has probability about zero (Schwartz, 1980,
doi:10.1145/322217.322225), and, unlike simplification, the work is a fixed number of operations.
Doubles are tried first, 50 digits where balls overlap and are too wide to tell.
"""

import zlib
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from lib.verifier.evaluate import (
    Evaluation,
    Value,
    approximate,
    constant,
    exact_value,
    named_number,
    real_value,
)
from lib.verifier.numbers import DOUBLES, Imprecise, Undefined, precise
from lib.verifier.tree import Node, TooHard, canonical, free_symbols

_POINTS = 6
"""Points that are tried: three with positive symbols, three of mixed sign."""
_ROUNDING_POINTS = 60
"""Points for functions with floor or ceiling, which agree at most points though they differ."""
_SCALES = (1, 3, 10)
MIN_DECIMAL_DIGITS = 6
"""Significant digits from which a decimal may represent a number that has no finite one."""
_NOISE_DIGITS = 15
_ENOUGH = (1e-9, 1e-25)
"""Relative radius, in doubles and in 50 digits, at which balls that overlap are one number."""


class Undecided(ValueError):
    """The steps up to here cannot tell; the message says why."""


class Literal(NamedTuple):
    """A number literal: its value, last place, and significant digits."""

    value: Fraction
    last_place: Fraction
    digits: int


def decimal_literal(node: Node) -> Literal | None:
    """What `node` is when it is digits as written, with a sign or a power of ten; else None."""
    if node.kind == "product" and len(node.args) == 2:
        left, right = node.args
        if right.kind == "power" and right.args[0].value == 10:
            scale, literal = exact_value(right), decimal_literal(left)
            if literal and scale:
                return Literal(literal.value * scale, literal.last_place * scale, literal.digits)
        return None
    if node.kind != "number" or not node.name or node.value is None:
        return None
    _, digits, exponent = Decimal(node.name).as_tuple()
    return Literal(node.value, Fraction(10) ** int(exponent), len(digits))


def same_scalar(reference: Node, answer: Node) -> tuple[bool, str]:
    """Whether the two are equal, and which step decided it: number, decimal, structure, numeric.

    Raises:
        Undecided: neither can be evaluated.
        TooHard: beyond the limits, and not the same tree either.
    """
    if canonical(reference) == canonical(answer):
        return True, "structure"
    expected, actual = exact_value(reference), exact_value(answer)
    step = "number" if expected is not None and actual is not None else "numeric"
    if step == "numeric":
        names = free_symbols(reference) | free_symbols(answer)
        if "infinity" in names:
            return False, "structure"
        if names:
            return _same_function(reference, answer, names), step
        if _agree(reference, answer, {})[0]:
            return True, step
    elif expected == actual:
        return True, step
    decimals = decimal_literal(reference), decimal_literal(answer)
    if not any(decimals):
        return False, step
    expected = real_value(reference) if expected is None else expected
    actual = real_value(answer) if actual is None else actual
    is_represented = _represents(decimals[1], expected, decimals[0]) or _represents(
        decimals[0], actual, decimals[1]
    )
    return is_represented, "decimal" if is_represented else step


def _represents(literal: Literal | None, value: Fraction | None, other: Literal | None) -> bool:
    """Whether a decimal represents another number: enough digits, correct to the last place."""
    if literal is None or value is None:
        return False
    difference = abs(value - literal.value)
    if literal.digits >= _NOISE_DIGITS and difference <= abs(value) / 10**12:
        return True
    if literal.digits < MIN_DECIMAL_DIGITS or (other and other.digits <= literal.digits):
        return False
    finite = (value / literal.last_place).denominator == 1
    return not finite and difference <= literal.last_place


def _point(names: frozenset[str], index: int) -> dict[str, Fraction]:
    """Values of symbols at one point: 0.3 to 2.7 times 1, 3 or 10; up to 54 from `_POINTS` on.

    The points 3 to 5 are 0 to 2 with some signs turned.
    """
    turned = 3 <= index < _POINTS
    place = index - 3 if turned else index
    scale = _SCALES[place] if place < len(_SCALES) else 20
    values = {}
    for name in names:
        size = named_number(f"{place}:{name}") * scale
        negative = turned and (zlib.crc32(f"{place}:{name}".encode()) >> 24) % 4 != index % 4
        values[name] = -size if negative else size
    return values


def _same_function(reference: Node, answer: Node, names: frozenset[str]) -> bool:
    """Agreement at every usable point; those on a branch cut count only where there is no other."""
    tried: list[tuple[bool, bool]] = []
    reason = "no point where both are defined"
    rounds = _rounds(reference) or _rounds(answer)
    for index in range(_ROUNDING_POINTS if rounds else _POINTS):
        try:
            same, branched = _agree(reference, answer, _point(names, index))
        except (Undecided, TooHard) as error:
            reason = str(error)
            continue
        if not same and not branched:
            return False
        tried.append((same, branched))
    if len(tried) < 2:
        raise Undecided(reason)
    return not all(branched for _, branched in tried) or all(same for same, _ in tried)


def _rounds(node: Node) -> bool:
    return node.name in ("floor", "ceil") or any(map(_rounds, node.args))


def _agree(reference: Node, answer: Node, values: Mapping[str, Fraction]) -> tuple[bool, bool]:
    """Whether the values agree at a point, and whether a branch cut was met on the way.

    Raises:
        Undecided: no value, or not even 50 digits can tell.
        TooHard: beyond the limits.
    """
    reason: ValueError = Undecided("rounding errors")
    for precision, enough in enumerate(_ENOUGH):
        evaluation = Evaluation(precise() if precision else DOUBLES, values)
        try:
            value = evaluation.value if values or precision else constant
            one, two = value(reference), value(answer)
            same = _overlap(evaluation, one, two, enough)
        except (Imprecise, TooHard) as error:
            reason = error
            continue
        except Undefined as error:
            raise Undecided(str(error)) from error
        # What agrees in doubles may still be two constants that differ in the 20th digit.
        if same is not None and (values or precision or not same):
            return same, evaluation.branched
    raise reason if isinstance(reason, TooHard) else Undecided(str(reason))


def _overlap(evaluation: Evaluation, one: Value, two: Value, enough: float) -> bool | None:
    """Whether two values are one number; None where their balls are too wide to tell."""
    if isinstance(one, Fraction) and isinstance(two, Fraction):
        return one == two
    left, right = evaluation.ball(one), evaluation.ball(two)
    radius = left.radius + right.radius
    if abs(left.middle - right.middle) > radius:
        return False
    scale = max(abs(left.middle), abs(right.middle))
    # Where everything cancels there is no scale but 1, and doubles do not settle that.
    return True if radius <= enough * (max(scale, 1) if enough < 1e-20 else scale) else None


def proportional(left: Node, right: Node) -> int:
    """Sign of the constant c with left = c · right at every point; 0 where there is none.

    Raises:
        Undecided: too few points where both have a value.
    """
    names = free_symbols(left) | free_symbols(right)
    ratios: list[complex] = []
    for index in range(_POINTS):
        try:
            ratio = approximate(Node("quotient", (left, right)), _point(names, index))
        except (Undefined, TooHard):
            continue
        if ratio:
            ratios.append(ratio)
    if len(ratios) < 3:
        raise Undecided("no point where both sides are defined")
    first = ratios[0]
    if any(abs(ratio - first) > 1e-8 * abs(first) for ratio in [*ratios, first.real]):
        return 0
    return 1 if first.real > 0 else -1
