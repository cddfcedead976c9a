"""Whether two expressions denote the same number, or the same function of their symbols."""

from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from lib.verifier.approximate import Evaluation, Undefined
from lib.verifier.exact import exact_value
from lib.verifier.fields import DOUBLES, Field, precise_field
from lib.verifier.points import POINTS, ROUNDING_POINTS, point
from lib.verifier.syntax import Node, TooHard, canonical

CONSTANTS = frozenset(["pi", "e", "i", "infinity"])
MIN_DECIMAL_DIGITS = 6
"""Significant digits from which a decimal may stand for a number that has no finite one."""
_NOISE_DIGITS = 15
_CLOSE, _APART, _LOST = 1e-9, 1e-6, 1e6
_PRECISE = 1e-30


class Undecided(ValueError):
    """The steps up to here cannot tell; the message says why."""


class Decimal(NamedTuple):
    """A number literal with a decimal point: its value, last place, and significant digits."""

    value: Fraction
    last_place: Fraction
    digits: int


def same_scalar(reference: Node, answer: Node) -> tuple[bool, str]:
    """Whether the two are equal, and which step decided it: number, decimal, structure, numeric.

    Raises:
        Undecided: neither can be evaluated.
        TooHard: beyond the limits, and not the same tree either.
    """
    try:
        right, given = exact_value(reference), exact_value(answer)
    except TooHard:
        if canonical(reference) == canonical(answer):
            return True, "structure"
        raise
    if right is not None and given is not None:
        return (True, "number") if right == given else _as_decimals(reference, answer, right, given)
    if reference == answer or canonical(reference) == canonical(answer):
        return True, "structure"
    names = free_symbols(reference) | free_symbols(answer)
    if "infinity" in names:
        return False, "structure"
    if names:
        return _same_function(reference, answer, names), "numeric"
    return _same_constant(reference, answer)


def _as_decimals(reference: Node, answer: Node, right: Any, given: Any) -> tuple[bool, str]:
    """Whether a decimal stands for the other number: enough digits, correct to the last place."""
    for literal, value, other in (
        (decimal_literal(answer), right, decimal_literal(reference)),
        (decimal_literal(reference), given, decimal_literal(answer)),
    ):
        if literal and _stands_for(literal, value, other):
            return True, "decimal"
    return False, "number"


def _stands_for(literal: Decimal, value: Any, other: Decimal | None) -> bool:
    places = 1 / literal.last_place
    difference = abs(value - _like(value, literal.value))
    if literal.digits >= _NOISE_DIGITS and difference <= abs(value) * _like(value, 1) / 10**12:
        return True
    if literal.digits < MIN_DECIMAL_DIGITS or (other and other.digits <= literal.digits):
        return False
    if isinstance(value, Fraction) and (value * places).denominator == 1:
        return False
    return bool(difference <= _like(value, literal.last_place))


def _like(value: Any, number: Fraction | int) -> Any:
    """`number` in the arithmetic of `value`."""
    return number if isinstance(value, Fraction) else precise_field().number(number)


def decimal_literal(node: Node) -> Decimal | None:
    """What `node` is when it is a decimal as written, with a sign or a power of ten; else None."""
    if node.kind == "product" and len(node.args) == 2:
        left, right = node.args
        if right.kind == "power" and right.args[0].value == 10:
            scale = exact_value(right)
            literal = decimal_literal(left)
            if literal and scale:
                return Decimal(literal.value * scale, literal.last_place * scale, literal.digits)
        return None
    if node.kind != "number" or "." not in node.name or node.value is None:
        return None
    mantissa, _, exponent = node.name.lower().lstrip("-").partition("e")
    whole, _, part = mantissa.partition(".")
    last_place = Fraction(10) ** (int(exponent or 0) - len(part))
    return Decimal(node.value, last_place, len((whole + part).lstrip("0")))


@lru_cache(maxsize=8192)
def free_symbols(node: Node) -> frozenset[str]:
    """Names in `node` that stand for no known number, without indices of sums."""
    if node.kind == "symbol":
        return frozenset() if node.name in ("pi", "e", "i") else frozenset([node.name])
    names = frozenset[str]().union(*(free_symbols(part) for part in node.args))
    if node.kind == "calculus" and node.args[0].kind == "relation":
        names -= {node.args[0].args[0].name}
    if node.kind == "calculus":
        names -= {"infinity"}
    return names


def _same_constant(reference: Node, answer: Node) -> tuple[bool, str]:
    field = precise_field()
    right, given = _evaluated(reference, field, {}), _evaluated(answer, field, {})
    scale = max(abs(right.value), abs(given.value))
    if max(right.lost, given.lost) > 1e25:
        scale = max(scale, right.largest, given.largest)
    if abs(right.value - given.value) <= _PRECISE * scale:
        return True, "numeric"
    if _imaginary(right.value) or _imaginary(given.value):
        return False, "numeric"
    same, step = _as_decimals(reference, answer, _real(right.value), _real(given.value))
    return same, step if same else "numeric"


def _imaginary(value: Any) -> bool:
    return bool(abs(getattr(value, "imag", 0)) > _PRECISE * abs(value))


def _real(value: Any) -> Any:
    return getattr(value, "real", value)


class _Value(NamedTuple):
    value: Any
    lost: float
    largest: float
    branched: bool


def _evaluated(node: Node, field: Field, values: dict[str, float]) -> _Value:
    evaluation = Evaluation(field, values)
    try:
        value = evaluation.value(node)
    except Undefined as error:
        raise Undecided(str(error)) from error
    return _Value(value, evaluation.lost, evaluation.largest, evaluation.branched)


def _same_function(reference: Node, answer: Node, names: frozenset[str]) -> bool:
    """Agreement at every usable point; those on a branch cut count only where there is no other."""
    tried: list[tuple[bool, bool]] = []
    reason = "no point where both are defined"
    rounds = _rounds(reference) or _rounds(answer)
    for index in range(ROUNDING_POINTS if rounds else POINTS):
        try:
            same, branched = _agree(reference, answer, point(names, index))
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


def _agree(reference: Node, answer: Node, values: dict[str, float]) -> tuple[bool, bool]:
    """Whether the values agree at a point, and whether a branch cut was met on the way."""
    try:
        right, given = _evaluated(reference, DOUBLES, values), _evaluated(answer, DOUBLES, values)
        apart = abs(right.value - given.value) / (max(abs(right.value), abs(given.value)) or 1.0)
        if max(right.lost, given.lost) < _LOST and (apart < _CLOSE or apart > _APART):
            return apart < _CLOSE, right.branched or given.branched
    except TooHard:
        pass
    field = precise_field()
    right, given = _evaluated(reference, field, values), _evaluated(answer, field, values)
    scale = max(abs(right.value), abs(given.value))
    if max(right.lost, given.lost) > 1e25:
        scale = max(scale, right.largest, given.largest)
    return (
        bool(abs(right.value - given.value) <= _PRECISE * scale),
        right.branched or given.branched,
    )


def proportional(left: Node, right: Node) -> int:
    """Sign of the constant c with left = c · right at every point; 0 where there is none.

    Raises:
        Undecided: too few points where both have a value.
    """
    names = free_symbols(left) | free_symbols(right)
    ratios: list[complex] = []
    for index in range(POINTS):
        try:
            values = point(names, index)
            above, below = _evaluated(left, DOUBLES, values), _evaluated(right, DOUBLES, values)
        except (Undecided, TooHard):
            continue
        if not above.value or not below.value:
            continue
        ratios.append(complex(above.value / below.value))
    if len(ratios) < 3:
        raise Undecided("no point where both sides are defined")
    first = ratios[0]
    if any(abs(ratio - first) > 1e-8 * abs(first) for ratio in ratios):
        return 0
    return 0 if abs(first.imag) > 1e-8 * abs(first) else (1 if first.real > 0 else -1)
