"""Whether two expressions denote the same number, or the same function of their symbols.

Functions are equal when their values agree at several points, each symbol set to a rational that
depends on its name only. Chance agreement has probability about zero (Schwartz, 1980,
doi:10.1145/322217.322225), and, unlike simplification, the work is a fixed number of operations.
"""

import zlib
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from lib.verifier.evaluate import (
    Evaluation,
    Value,
    constant,
    exact_value,
    named_number,
    real_value,
)
from lib.verifier.numbers import ball
from lib.verifier.tree import (
    Node,
    TooHard,
    Undecided,
    canonical,
    free_symbols,
    nodes,
    number,
    unknown_functions,
)

_POINTS = 8
"""Points that are tried: four with positive symbols, four of mixed sign; integers: all parities."""
_ROUNDING_POINTS = 60
"""Points for functions with floor or ceiling, which agree at most points though they differ."""
_SCALES: tuple[Fraction | int, ...] = (1, 3, 10, Fraction(1, 10))
MIN_DECIMAL_DIGITS = 4
"""Significant digits from which a decimal may represent a number that has no finite one."""
_ENOUGH = 1e-25
"""Radius at which balls that overlap are one number: relative to the value between 1 and
`_MAX_SCALE`, beyond which a small term would be lost in a large one."""
_MAX_SCALE = 1e5


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
    values = {}
    for name in names:
        key = f"{index}:{name}"
        size = named_number(key) * scales[index % len(scales)]
        is_turned = index // len(scales) % 2 and zlib.crc32(key.encode()) >> 24 & 3
        values[name] = -size if is_turned else size
    for order, name in enumerate(integers):
        values[name] = Fraction(2 + 2 * (index * (order + 1) % 5) + (index >> order & 1))
    return values


def _integers(*trees: Node) -> list[str]:
    """Symbols in an exponent of what is or may be negative, which are defined for integers only."""
    powers = [part.args for tree in trees for part in nodes(tree) if part.kind == "power"]
    return sorted(
        {name for base, up in powers if _may_be_negative(base) for name in free_symbols(up)}
    )


def _may_be_negative(base: Node) -> bool:
    has_minus = any(part.value and part.value < 0 for part in nodes(base))
    return has_minus or (real_value(base) or 0) < 0


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
    evaluation = Evaluation(values)
    value = evaluation.value if values else constant
    return _overlap(value(reference), value(answer)), evaluation.branched


def _overlap(one: Value, two: Value) -> bool:
    """Whether two values are one number.

    Raises:
        Undecided: their balls are too wide to tell.
    """
    if isinstance(one, Fraction) and isinstance(two, Fraction):
        return one == two
    left, right = ball(one), ball(two)
    radius = left.radius + right.radius
    if abs(left.middle - right.middle) > radius:
        return False
    scale = min(max(abs(left.middle), abs(right.middle), 1), _MAX_SCALE)
    if radius > _ENOUGH * scale:
        raise Undecided("rounding errors")
    return True


def proportional(left: Node, right: Node) -> int:
    """Sign of the constant c with left = c · right everywhere; 0 where there is none.

    Raises:
        Undecided, TooHard: see `same_scalar`.
    """
    names = free_symbols(left) | free_symbols(right)
    names |= unknown_functions(left) | unknown_functions(right)
    values = [real_value(side, _point(names, [], 0)) for side in (left, right)]
    if not (values[0] and values[1]):
        return 0
    one = Node("product", (left, number(values[1])))
    two = Node("product", (right, number(values[0])))
    return same_scalar(one, two)[0] * (1 if values[0] * values[1] > 0 else -1)
