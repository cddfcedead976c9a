"""Whether two expressions denote the same number, or the same function of their symbols.

Functions are equal when their values agree at several points, each symbol set to a rational that
depends on its name only. Chance agreement has probability about zero (Schwartz, 1980,
doi:10.1145/322217.322225), and, unlike simplification, the work is a fixed number of operations.
Doubles are tried first, 50 digits where balls overlap and are too wide to tell.
"""

import zlib
from collections.abc import Mapping, Sequence
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
from lib.verifier.tree import Node, TooHard, canonical, free_symbols, nodes, unknown_functions

_POINTS = 8
"""Points that are tried: four with positive symbols, four of mixed sign; integers: all parities."""
_ROUNDING_POINTS = 60
"""Points for functions with floor or ceiling, which agree at most points though they differ."""
_SCALES: tuple[Fraction | int, ...] = (1, 3, 10, Fraction(1, 10))
MIN_DECIMAL_DIGITS = 4
"""Significant digits from which a decimal may represent a number that has no finite one."""
_ENOUGH = (1e-9, 1e-25)
"""Radius, in doubles and in 50 digits, at which balls that overlap are one number: relative to the
value up to `_MAX_SCALE`, beyond which a small term would be lost in a large one."""
_MAX_SCALE = 1e5


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
        names |= unknown_functions(reference) | unknown_functions(answer)
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
    represented = represents(decimals[1], reference, expected) or represents(
        decimals[0], answer, actual
    )
    return represented, "decimal" if represented else step


def represents(literal: Literal | None, node: Node, exact: Fraction | None) -> bool:
    """Whether a decimal is `node`, which has no finite decimal, rounded correctly.

    That is half a unit of the last place that is written, of a printed double too.
    """
    if literal is None or literal.digits < MIN_DECIMAL_DIGITS:
        return False
    value = real_value(node) if exact is None else exact
    if value is None or (exact is not None and is_finite_decimal(exact)):
        return False
    return abs(value - literal.value) <= literal.last_place / 2


def is_finite_decimal(value: Fraction) -> bool:
    """Whether `value` has a decimal that ends, an integer included."""
    return pow(10, value.denominator.bit_length(), value.denominator) == 0


def _point(
    names: frozenset[str],
    integers: Sequence[str],
    index: int,
    scales: Sequence[Fraction | int] = _SCALES,
) -> dict[str, Fraction]:
    """Values of symbols at one point: 0.3 to 2.7 times each scale in turn, then with signs.

    An integer gets one of 2 to 11, so that several have all parities between them.
    """
    turned = index % (2 * len(scales)) >= len(scales)
    place = index - len(scales) if turned and index < 2 * len(scales) else index
    values = {}
    for name in names:
        size = named_number(f"{place}:{name}") * scales[place % len(scales)]
        negative = turned and (zlib.crc32(f"{place}:{name}".encode()) >> 24) % 4 != index % 4
        values[name] = -size if negative else size
    for order, name in enumerate(integers):
        parity = index >> order & 1
        values[name] = Fraction(2 + 2 * (index * (order + 1) % 5) + parity)
    return values


def _integers(*trees: Node) -> list[str]:
    """Symbols in an exponent of what is or may be negative, which are defined for integers only."""
    powers = [part.args for tree in trees for part in nodes(tree) if part.kind == "power"]
    return sorted(
        {
            name
            for base, exponent in powers
            if (names := free_symbols(exponent)) and _may_be_negative(base)
            for name in names
        }
    )


def _may_be_negative(base: Node) -> bool:
    if any(part.value and part.value < 0 for part in nodes(base)):
        return True
    value = None if free_symbols(base) else real_value(base)
    return value is not None and value < 0


def _same_function(reference: Node, answer: Node, names: frozenset[str]) -> bool:
    """Agreement at every usable point; those on a branch cut count only where there is no other."""
    tried: list[tuple[bool, bool]] = []
    reason = "no point where both are defined"
    integers = _integers(reference, answer)
    scales, count = _SCALES, _POINTS
    if _rounds(reference) or _rounds(answer):
        scales, count = (*_SCALES, *_scales_of_steps(reference, answer)), _ROUNDING_POINTS
    for index in range(count):
        try:
            same, branched = _agree(reference, answer, _point(names, integers, index, scales))
        except (Undecided, TooHard) as error:
            reason = str(error)
            continue
        if not same and not branched:
            return False
        tried.append((same, branched))
    if len(tried) < 2:
        raise Undecided(reason)
    return not all(branched for _, branched in tried) or all(same for same, _ in tried)


def _scales_of_steps(*trees: Node) -> tuple[Fraction, Fraction, Fraction]:
    """Points where steps tell numbers of the trees apart: `n/21` from `n/22` at hundreds."""
    values = [abs(part.value) for tree in trees for part in nodes(tree) if part.value]
    size = max([*values, *(1 / value for value in values), Fraction(2)])
    return size, size * size, 1 / size


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
    scale = min(max(abs(left.middle), abs(right.middle)), _MAX_SCALE)
    # Where everything cancels there is no scale but 1, and doubles do not settle that.
    return True if radius <= enough * (max(scale, 1) if enough < 1e-20 else scale) else None


def proportional(left: Node, right: Node) -> int:
    """Sign of the constant c with left = c · right at every point; 0 where there is none.

    Raises:
        Undecided: too few points where both have a value.
    """
    names = free_symbols(left) | free_symbols(right)
    names |= unknown_functions(left) | unknown_functions(right)
    ratios: list[complex] = []
    for index in range(_POINTS):
        try:
            ratio = approximate(Node("quotient", (left, right)), _point(names, [], index))
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
