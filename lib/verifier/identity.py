"""Decide whether two expressions denote the same number, or the same function of their symbols.

Three ways, from proof to evidence:

- identity: both are the same rational expression of the same parts. Decided in a field of 255 bits
  where each symbol, and each part that is not rational in its arguments, is an element drawn from a
  hash of itself and of both sides (Schwartz, 1980, doi:10.1145/322217.322225): an answer cannot
  foresee the point, and error has probability below 2^-200.
- numbers: balls of a precision at which a difference that is not 0 would show. For roots this is a
  theorem (Burnikel, Fleischer, Mehlhorn, Schirra 2000, doi:10.1007/s004530010005); with pi,
  logarithms and the like it is a conjecture (uniformity; Richardson 2000), so the step is another.
- functions that are neither: values at points drawn from a hash of both sides, of all sizes from
  1e-3 to 1e6 and both signs. A point where only one side is defined, or that cannot be evaluated,
  counts against; steps and kinks (floor, max, |x|) are not decided by points.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from lib.verifier.evaluate import DIGITS, Evaluation, Value, Work, constant, exact_value
from lib.verifier.numbers import Ball
from lib.verifier.rules import Decision
from lib.verifier.tree import (
    FUNCTIONS,
    MAX_OPERATIONS,
    VALUED,
    Node,
    TooHard,
    Undecided,
    difference,
    free_symbols,
    is_opaque,
    names,
    nodes,
    spelled,
)

# Prime, and 1 mod 4, so that −1 has a root, which stands for i.
_PRIME = 2**255 - 19
_ROOT_OF_MINUS_ONE = pow(2, (_PRIME - 1) // 4, _PRIME)
_UNORDERED = names("set union intersection max min gcd lcm dot")
# Equal almost everywhere is not equal: a kink may lie between the points.
_KINKED = names("abs max min floor ceil sgn mod Re Im conj")
_MAX_BOUND_BITS = 12_000
_MAX_DEGREE = 256
# 1e-3 to 1e6: terms that vanish at one size show at another.
_SCALES = tuple(Fraction(10) ** power for power in (0, 1, -1, 2, -2, 3, -3, 4, 5, 6))
_NUM_POINTS = 24
_MIN_POINTS = 5
_MAX_POINT_DIGITS = 600


class Fingerprint:
    """The elements of a finite field that the trees of one pair denote."""

    def __init__(self, salt: str) -> None:
        self.salt = salt
        self.memo: dict[Node, int] = {}

    def element(self, *parts: object) -> int:
        """Return the random element for a name or an unknown value."""
        # The unit separator occurs in no token, so that parts cannot run together.
        text = "\x1f".join(map(str, (self.salt, *parts)))
        # 512 bits reduced modulo 255: the bias is below 2^-256.
        return int.from_bytes(hashlib.sha512(text.encode()).digest(), "big") % _PRIME

    def of(self, node: Node) -> int:
        """Return the element of `node`.

        Raises:
            Undecided: a division by 0.
        """
        if node not in self.memo:
            self.memo[node] = self._of(node) % _PRIME
        return self.memo[node]

    def _of(self, node: Node) -> int:
        kind, name, args = node.kind, node.name, node.args
        if kind == "number" and node.value is not None:
            return node.value.numerator * self.inverse(node.value.denominator)
        # i is the one symbol with a value that the field knows.
        if kind == "symbol":
            return _ROOT_OF_MINUS_ONE if name == "i" else self.element("symbol", name)
        if kind in ("sum", "product", "quotient", "power") and not all(map(_is_scalar, args)):
            # Nothing cancels where infinity, dots or sets are among the parts.
            values = list(map(self.of, args))
            return self.element(
                "no number", kind, *(sorted(values) if kind in ("sum", "product") else values)
            )
        if kind == "sum":
            return sum(map(self.of, args))
        if kind == "product":
            product = 1
            for part in args:
                product = product * self.of(part) % _PRIME
            # 0 times a word is not 0: `0 NO` answers nothing.
            if not product and any(_is_word(part) for part in args):
                return self.element("no number", *sorted(map(self.of, args)))
            return product
        if kind == "quotient":
            return self.of(args[0]) * self.inverse(self.of(args[1]))
        if kind == "percent":
            # A percentage is its hundredth.
            return self.of(args[0]) * self.inverse(100)
        if kind == "degree":
            return self.of(args[0]) * self.element("symbol", "pi") * self.inverse(180)
        if kind == "power":
            return self._power(*args)
        if kind == "root":
            index = exact_value(args[0])
            times = args[1].args[1].value if args[1].kind == "power" else None
            if index == 2 and times and times.denominator == 1 and times % 2 == 0:
                # Of real numbers, the root of a square is the absolute value.
                return self.element("call", "abs", self.of(args[1]))
            return self._root(self.of(args[1]), 1 / index) if index else self._other(node)
        if kind == "factorial":
            return self.element("call", "factorial", self.of(args[0]))
        if kind == "call":
            return self._call(name, args)
        return self._other(node)

    def inverse(self, value: int) -> int:
        """Return one over an element.

        Raises:
            Undecided: it is 0.
        """
        if value % _PRIME == 0:
            raise Undecided("division by 0")
        return pow(value, -1, _PRIME)

    def _power(self, base: Node, exponent: Node) -> int:
        """Return a power: sums of the exponent as products, integer factors as powers."""
        # Only the base's value counts, so that x^2 and x·x are one element.
        below = self.of(base)
        product = 1
        for term in exponent.args if exponent.kind == "sum" else (exponent,):
            value = exact_value(term) if not free_symbols(term) else None
            if value is not None:
                product *= self._root(below, value)
                continue
            factors = term.args if term.kind == "product" else (term,)
            whole = [x.value for x in factors if x.value is not None and x.value.denominator == 1]
            rest = [x for x in factors if x.value is None or x.value.denominator != 1]
            times = math.prod(map(int, whole))
            letter = self.of(Node("product", tuple(rest)))
            product *= self._raised(self.element("power", below, letter), times)
        return product % _PRIME

    def _raised(self, value: int, times: int) -> int:
        return pow(value if times >= 0 else self.inverse(value), abs(times), _PRIME)

    def _root(self, value: int, exponent: Fraction) -> int:
        # x^(7/2) is x^3 · x^(1/2): integer powers are exact, roots are elements.
        whole, rest = divmod(exponent.numerator, exponent.denominator)
        product = self._raised(value, whole)
        if rest:
            product *= self._raised(self.element("root", exponent.denominator, value), rest)
        return product % _PRIME

    def _call(self, name: str, args: Sequence[Node]) -> int:
        values = [self.of(part) for part in args]
        # One spelling for e^x.
        if name == "exp" and len(values) == 1:
            return self._power(Node("symbol", (), "e"), args[0])
        # log_b x as ln x / ln b.
        if name in ("log", "lg") and (len(values) == 2 or name == "lg"):
            below = values[1] if len(values) == 2 else 10
            return self.element("call", "ln", values[0]) * self.inverse(
                self.element("call", "ln", below)
            )
        if name == "log":
            return self.element("call", "ln", *values)
        # By the square: |x| and |−x| are one element.
        if name in ("abs", "norm"):
            return self.element("call", name, *(value * value % _PRIME for value in values))
        # max(a, b) = (a + b + |a − b|) / 2
        if name in ("max", "min") and len(values) == 2:
            gap = values[0] - values[1]
            size = self.element("call", "abs", gap * gap % _PRIME)
            return (sum(values) + (size if name == "max" else -size)) * self.inverse(2)
        if name in _UNORDERED:
            values.sort()
        return self.element("call", name, *values)

    def _other(self, node: Node) -> int:
        """Return the element of any other node, from its parts; the index of a sum or integral
        is bound.
        """
        name, args = node.name, node.args
        if node.kind == "calculus" and args[0].kind == "relation":
            index = args[0].args[0]
            outer = self.memo
            self.memo = {index: self.element("index")}
            values = list(map(self.of, args))
            self.memo = outer
        else:
            values = list(map(self.of, args))
        if node.kind in _UNORDERED or (node.kind == "list" and name == "or"):
            values.sort()
        value = "" if node.value is None else node.value
        return self.element(node.kind, name, value, *values)


def _is_word(node: Node) -> bool:
    """Return True if a symbol is written in several capitals, which may be a word."""
    return (
        node.kind == "symbol" and len(node.name) > 1 and node.name.isalpha() and node.name.isupper()
    )


def _is_scalar(node: Node) -> bool:
    """Return True if a number is meant."""
    if node.kind == "symbol":
        is_set = node.name.startswith(("bb:", "nabla"))
        return not is_set and node.name not in ("infinity", "ldots") and node.name not in FUNCTIONS
    if node.kind in ("sum", "product", "quotient", "power"):
        return all(map(_is_scalar, node.args))
    return node.kind in VALUED or node.kind == "calculus"


def same_expression(one: Node, two: Node) -> Decision:
    """Return True if two trees with a value, or without, are equal as expressions.

    Raises:
        Undecided: neither equal nor different for certain.
        TooHard: beyond the limits.
    """
    # Without symbols it is a question about two numbers.
    symbols = free_symbols(one) | free_symbols(two)
    salt = _salt(one, two)
    fingerprint = Fingerprint(salt)
    if not symbols and not (is_opaque(one) or is_opaque(two)):
        return _same_number(one, two, fingerprint)
    if fingerprint.of(one) == fingerprint.of(two):
        return Decision(True, "identity")
    if any(part.kind == "calculus" for tree in (one, two) for part in nodes(tree)):
        raise Undecided("integrals and sums")
    if "infinity" in symbols or is_opaque(one) or is_opaque(two):
        return Decision(False, "identity")
    # Rational functions: different elements prove different functions.
    if _is_rational(one) and _is_rational(two):
        return Decision(False, "identity")
    return Decision(_agree_at_points(one, two, symbols, salt), "points")


def _salt(one: Node, two: Node) -> str:
    return "\x1e".join(sorted((spelled(one), spelled(two))))


def _is_rational(node: Node) -> bool:
    """Return True if `node` is a rational function of its symbols with rational coefficients."""
    if node.kind in ("number", "symbol"):
        return node.name not in ("i",)
    if node.kind == "power":
        value = node.args[1].value
        return value is not None and value.denominator == 1 and _is_rational(node.args[0])
    return node.kind in ("sum", "product", "quotient", "percent") and all(
        map(_is_rational, node.args)
    )


def _same_number(one: Node, two: Node, fingerprint: Fingerprint) -> Decision:
    try:
        values = [exact_value(one), exact_value(two)]
    except TooHard:
        # A power tower is too large a number, but not too large an identity.
        values = [None]
    if None not in values:
        return Decision(values[0] == values[1], "number")
    if fingerprint.of(one) == fingerprint.of(two):
        return Decision(True, "identity")
    # At the usual precision first: most wrong answers end here.
    looks = [constant(one), constant(two)]
    if _apart(*looks):
        return Decision(False, "numeric")
    bound = _bound(difference(one, two), {})
    # log10(2) = 0.30103, and 40 digits of room for rounding.
    digits = int(bound.bits * 0.302) + 40
    deep = [Evaluation({}, digits).value(node) for node in (one, two)]
    if _apart(*deep):
        return Decision(False, "numeric")
    gap = (deep[0] if isinstance(deep[0], Ball) else deep[1]).like(deep[0]) + -deep[1]
    # The balls overlap, and are wider than the bound: nothing is proved.
    if gap.radius and gap.radius.context.mag(gap.radius) > -bound.bits:
        raise Undecided("rounding errors")
    return Decision(True, "numeric" if bound.transcendental else "algebraic")


def _apart(one: Value, two: Value) -> bool:
    if isinstance(one, Fraction) and isinstance(two, Fraction):
        return one != two
    gap = one + -two
    return bool(abs(gap.middle) > gap.radius)


class _Bound(NamedTuple):
    """Logarithms of the sizes above and below the line, and the degree of the roots in it."""

    above: float
    below: float
    degree: int
    transcendental: bool

    @property
    def bits(self) -> float:
        """A number that is not 0 is at least 2 to minus this.

        Raises:
            TooHard: too small to compute.
        """
        # The root bound of BFMSS, in bits.
        bits = 2 * (self.degree * self.above + self.below) + 8
        if bits > _MAX_BOUND_BITS or self.degree > _MAX_DEGREE:
            raise TooHard("a difference too small to see")
        return bits


def _bound(node: Node, roots: dict[Node, int]) -> _Bound:
    """Return the bound of BFMSS; functions and constants as if they were roots of degree 2."""
    above, below, transcendental = _sizes(node, roots)
    degree = math.prod(roots.values())
    return _Bound(above, below, degree, transcendental)


def _sizes(node: Node, roots: dict[Node, int]) -> tuple[float, float, bool]:
    value = exact_value(node)
    if value is not None:
        return (value.numerator.bit_length() + 0.0, value.denominator.bit_length() + 0.0, False)
    if node.kind == "symbol":
        roots[node] = 2
        return 2.0, 0.0, node.name != "i"
    parts = [_sizes(part, roots) for part in node.args]
    is_beyond = any(part[2] for part in parts)
    if node.kind == "sum":
        below = sum(part[1] for part in parts)
        return max(part[0] + below - part[1] for part in parts) + len(parts), below, is_beyond
    if node.kind == "product":
        return sum(part[0] for part in parts), sum(part[1] for part in parts), is_beyond
    if node.kind in ("quotient", "percent"):
        other = parts[1] if node.kind == "quotient" else (7.0, 0.0, False)
        return parts[0][0] + other[1], parts[0][1] + other[0], is_beyond
    power = exact_value(node.args[1]) if node.kind == "power" else None
    if node.kind == "root" and (index := exact_value(node.args[0])):
        power, parts = 1 / index, parts[1:]
    if power is not None:
        # Each different root multiplies the degree of the number field.
        if power.denominator > 1:
            roots[node] = power.denominator
        times = abs(power.numerator)
        above, below = (parts[0][0] * times, parts[0][1] * times)
        return (above, below, is_beyond) if power > 0 else (below, above, is_beyond)
    roots[node] = 2
    total = sum(part[0] + part[1] for part in parts) + 8
    return total, total, True


def _agree_at_points(one: Node, two: Node, symbols: frozenset[str], salt: str) -> bool:
    """Return True if both sides are defined at the same points and equal there.

    Raises:
        Undecided, TooHard: a point cannot be evaluated.
    """
    parts = [*nodes(one), *nodes(two)]
    if any(part.name in _KINKED for part in parts if part.kind == "call"):
        raise Undecided("steps and kinks")
    is_complex = any(part.kind == "symbol" and part.name == "i" for part in parts)
    integers = _integers(parts)
    sizes = {abs(part.value) for part in parts if part.value and not part.args}
    scales = (*_SCALES, *sorted(size for size in sizes if size > 3 or size < Fraction(1, 3))[:6])
    num_clean, work = 0, Work(2 * MAX_OPERATIONS)
    for index in range(max(_NUM_POINTS, 2 * len(scales))):
        point = {
            name: _coordinate(f"{salt}{index}{name}", index, scales, name in integers)
            for name in sorted(symbols)
        }
        looks = [_look(node, point, work, DIGITS) for node in (one, two)]
        spread = max(look.high for look in looks) - min(look.low for look in looks)
        if DIGITS < spread * 0.302 + 30 < _MAX_POINT_DIGITS and index < len(scales):
            # A part so small beside another must not hide below the rounding.
            looks = [_look(node, point, work, int(spread * 0.302) + 40) for node in (one, two)]
            spread = 0
        values = [look.value for look in looks]
        if values[0] is None or values[1] is None:
            if values != [None, None]:
                return False
            continue
        if all(look.branched for look in looks) and not is_complex:
            continue
        if not _equal_at_point(*values):
            return False
        num_clean += spread * 0.302 + 10 < DIGITS
    if num_clean < _MIN_POINTS:
        raise Undecided("no point where both are defined and nothing is hidden")
    return True


class _Look(NamedTuple):
    """A value at a point, None where there is none, and the sizes on the way to it, in bits."""

    value: Value | None
    branched: bool
    low: float
    high: float


def _look(node: Node, point: Mapping[str, Fraction], work: Work, digits: int) -> _Look:
    evaluation = Evaluation(point, digits, work)
    try:
        value = evaluation.value(node)
    except Undecided:
        value = None
    return _Look(value, evaluation.branched, evaluation.low, evaluation.high)


def _equal_at_point(one: Value, two: Value) -> bool:
    if isinstance(one, Fraction) and isinstance(two, Fraction):
        return one == two
    if _apart(one, two):
        return False
    gap = one + -two
    size = max(abs(x.middle if isinstance(x, Ball) else gap.like(x).middle) for x in (one, two))
    if size and gap.radius > size * gap.radius.context.mpf("1e-12"):
        raise Undecided("rounding errors")
    return True


def _coordinate(key: str, index: int, scales: Sequence[Fraction], is_integer: bool) -> Fraction:
    """Return a number that only a hash of both sides tells."""
    digest = hashlib.sha256(key.encode()).digest()
    bits = int.from_bytes(digest[:8], "big")
    if is_integer:
        largest = (6, 12, 40, 300, 2_000, 10_000)[index % 6]
        return Fraction(1 + bits % largest)
    size = scales[index % len(scales)] * Fraction(1 + bits % 9_973, 4_001)
    is_negative = index // len(scales) % 2 and digest[8] % 4
    return -size if is_negative else size


def _integers(parts: Sequence[Node]) -> frozenset[str]:
    """Find symbols in an exponent of a possibly negative base, in a factorial or a binomial."""
    symbols = frozenset[str]()
    for part in parts:
        if part.kind == "power" and _may_be_negative(part.args[0]):
            symbols |= free_symbols(part.args[1])
        elif part.kind == "factorial" or part.name in ("binomial", "factorial2"):
            symbols |= free_symbols(part)
    return symbols


def _may_be_negative(base: Node) -> bool:
    value = exact_value(base) if not free_symbols(base) else None
    return value is not None and value < 0


def proportional(left: Node, right: Node) -> int:
    """Return the sign of the constant c with left = c · right, as an identity; 0 if there is none.

    Raises:
        Undecided, TooHard: see `same_expression`.
    """
    if not (free_symbols(left) or free_symbols(right)):
        return 0
    # Two independent points: a constant ratio at both is an identity but for 2^-200.
    ratios = []
    for attempt in ("one", "two"):
        field = Fingerprint(attempt + _salt(left, right))
        below = field.of(right)
        if not below:
            return 0
        ratios.append(field.of(left) * field.inverse(below) % _PRIME)
    return _sign(ratios[0]) if ratios[0] == ratios[1] else 0


def _sign(element: int) -> int:
    """Return the sign of the small rational number that an element of the field is, 0 where it
    is none.
    """
    (above, below), (rest, times) = (_PRIME, 0), (element, 1)
    # Rational reconstruction (Wang 1981): the half-way point of Euclid's algorithm.
    while rest > 1 << 100:
        quotient = above // rest
        (above, below), (rest, times) = (
            (rest, times),
            (above - quotient * rest, below - quotient * times),
        )
    return 0 if not rest or abs(times) > 1 << 100 else 1 if times > 0 else -1
