"""Decide whether two expressions denote the same number, or the same function of their symbols.

`(x + 1)^2` and `x^2 + 2x + 1` are equal. Two ways, from proof to evidence:

- identity: both sides are evaluated at a random point, in the integers modulo four random primes
  of 64 bits (polynomial identity testing: Schwartz, 1980, doi:10.1145/322217.322225). Each symbol
  is an element of this ring, drawn from a hash of its name and of both sides, and so is each part
  that is not rational in its arguments, such as ln x. Sines and their like are computed from
  exponentials, factorials and binomials from one factorial. The primes too depend on both sides,
  so that no answer can foresee them or the elements; the probability of an error is below 2^-100.
- numbers: balls of a precision at which any difference except 0 would show. For roots this is a
  theorem (Burnikel, Fleischer, Mehlhorn, Schirra 2000, doi:10.1007/s004530010005) and the step is
  "algebraic"; with pi, logarithms and the like it is a conjecture (uniformity; Richardson 2000),
  and the step is "numeric".

What neither way proves is refused.
"""

import functools
import hashlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from reckon_verifier.evaluate import constant, exact_value, gap
from reckon_verifier.rules import Verdict
from reckon_verifier.tree import (
    FUNCTIONS,
    VALUED,
    Node,
    TooHard,
    Undecided,
    difference,
    free_symbols,
    is_opaque,
    names,
    nodes,
    number,
    spelled,
    symbol,
)

_SMALL_FACTORS = math.prod(range(3, 200, 2))
"""A multiple of all odd primes below 200."""
_UNORDERED = names("set union intersection max min gcd lcm")
# Circular and hyperbolic functions; the hyperbolic ones end in h.
_CIRCULAR = names("sin cos tan cot sec csc sinh cosh tanh coth sech csch")
_PARTS = 2520
"""An unknown power x^y is (x^(y/2520))^2520, so that its square, cube and further roots are known.

2520 is divisible by 2 to 10.
"""
_MAX_EXPONENT = 1 << 32
"""A larger power is drawn as a whole: x^n would be 1 if n were a multiple of each prime less 1."""
_MAX_SHIFT = 40
"""Largest k for which (n + k)! is expanded to n! (n + 1) … (n + k)."""
_MAX_PRIME = 200
"""Primes below this are found as factors of a number."""
_MAX_TERMS = 40
"""Terms to which a product is multiplied out."""
_MAX_BOUND_BITS = 12_000
"""Largest precision, in bits, to which two numbers are compared."""
_I, _E, _PI = symbol("i"), symbol("e"), symbol("pi")
_I_PI = Node("product", (_I, _PI))

Term = tuple[Fraction, tuple[Node, ...]]
"""A term as (rational factor, other factors): 6xy is (6, (x, y)), and 6 is (6, ())."""


class Fingerprint:
    """Evaluates expression trees at a random point of the integers modulo `modulus`.

    An element is an int from 0 to `modulus` - 1. Expressions that are equal by the identities of
    this class get the same element, such as (x + 1)^2 and x^2 + 2x + 1. Different functions get
    different ones, except with a probability below 2^-100.

    Attributes:
        salt: text of both sides of the comparison; modulus and random elements depend on it.
        memo: the element of each tree so far.
        roots: for each element that was drawn as a root, (radicand, index).
        factors: of products, quotients and powers, the elements that are multiplied, and how often.
        radicands: those with letters so far.
    """

    def __init__(self, salt: str) -> None:
        self.salt = salt
        self.memo: dict[Node, int] = {}
        self.roots: dict[int, tuple[int, int]] = {}
        self.factors: dict[Node, Counter[int]] = {}
        self.radicands: list[int] = []

    @functools.cached_property
    def primes(self) -> tuple[int, ...]:
        """Four primes of 64 bits, which take an eighth of the time to find of one of 255 bits."""
        return tuple(_prime(self._hash("prime", number)) for number in range(4))

    @functools.cached_property
    def modulus(self) -> int:
        """The product of the primes. If it were fixed, an answer could add it to the reference."""
        return math.prod(self.primes)

    @functools.cached_property
    def root_of_minus_one(self) -> int:
        """The element of i.

        2 is no square modulo a prime p of 5 mod 8: 2^((p - 1) / 2) is −1, and so is any odd power
        of it.
        """
        return pow(2, math.prod((prime - 1) // 4 for prime in self.primes), self.modulus)

    def _hash(self, *parts: object) -> int:
        """Return a hash of 512 bits of the salt and `parts`."""
        text = "\x1f".join(map(str, (self.salt, *parts)))
        return int.from_bytes(hashlib.sha512(text.encode()).digest(), "big")

    def element(self, *parts: object) -> int:
        """Return a pseudo-random element from a hash of the salt and `parts`.

        Used for a symbol, ("symbol", "x"), and for a value that is no rational expression, such as
        ("call", "ln", element of x). Equal parts give equal elements.
        """
        return self._hash(*parts) % self.modulus

    def of(self, node: Node) -> int:
        """Return the element of `node`, an integer from 0 to `modulus` - 1.

        Raises:
            Undecided: there is a division by 0, or 0^0.
        """
        if node not in self.memo:
            self.memo[node] = self._of(node) % self.modulus
        return self.memo[node]

    def _of(self, node: Node) -> int:
        """Compute the element of `node` from its parts; it may lie outside 0 to `modulus` - 1.

        A node without rules, such as a tuple, is *drawn*: it gets a pseudo-random element
        (`element`) that depends only on its kind, its name and the elements of its parts.
        """
        kind, name, args = node.kind, node.name, node.args
        if kind == "number" and node.value is not None:
            return node.value.numerator * self.inverse(node.value.denominator)
        # i has a value in the ring, a root of −1; the elements of other symbols are drawn.
        if kind == "symbol":
            return self.root_of_minus_one if name == "i" else self.element("symbol", name)
        values = list(map(self.of, args))
        # Infinity, dots and sets do not cancel: ∞ − ∞ is not 0.
        if kind in ("sum", "product", "quotient", "power") and not all(map(_is_scalar, args)):
            return self.element("no number", kind, *values)
        match kind:
            case "sum":
                return sum(values)
            case "product":
                product = self._multiplied(node, *((part, 1) for part in args))
                # 0 times a word is not 0: `0 NO` does not answer 0.
                if product % self.modulus == 0 and any(map(_is_word, args)):
                    return self.element("no number", *sorted(values))
                return product
            case "quotient":
                # The d of `\frac{d\theta}{d\phi}` does not cancel.
                if all(len(tail := _differentials(part)) > 1 and tail[0] == "d" for part in args):
                    return self.element(kind, *values, *map(spelled, args))
                # The element of a constant such as ln 1 is not 0, but its value is.
                _, below = args
                is_known = not (free_symbols(below) or is_opaque(below))
                if is_known and gap(constant(below), 0).has_zero:
                    raise Undecided("division by 0")
                # Raises if the divisor is 0, before anything cancels.
                self.inverse(values[1])
                return self._multiplied(node, (args[0], 1), (args[1], -1))
            case "percent":
                return values[0] * self.inverse(100)
            case "degree":
                return values[0] * self.of(_PI) * self.inverse(180)
            case "power":
                self.factors[node] = self._powers(*args)
                return self._product(self.factors[node])
            case "root":
                index, radicand = args
                # The n of √(x^n); None if the radicand is no power, or n is no number.
                power = radicand.args[1].value if radicand.kind == "power" else None
                is_real = _I not in nodes(radicand)
                if index.value == 2 and power and power % 2 == 0 and is_real:
                    # For an even n, √(x^n) is |x^(n/2)|. `_call` draws |y| from y^2, here x^n.
                    return self.element("call", "abs", values[1])
                self.inverse(values[0])
                exponent = Node("quotient", (number(1), index))
                self.factors[node] = self._powers(radicand, exponent)
                return self._product(self.factors[node])
            case "factorial":
                return self._factorial(args[0])
            case "call":
                return self._call(name, args, values)
            case "calculus" if "int" in name:
                # ∫ x dy is not ∫ y dx, and the bounds belong to dx dy in its order.
                return self.element(kind, name, *values, *_differentials(args[2]))
        # {1, 2} is {2, 1}, but the order of `1, 2, \ldots` counts.
        is_unordered = kind in _UNORDERED or (kind == "list" and name == "or")
        if is_unordered and "ldots" not in free_symbols(node):
            values.sort()
        return self.element(kind, name, *values)

    def inverse(self, value: int) -> int:
        """Return 1 / value in the ring.

        Raises:
            Undecided: `value` is 0.
        """
        return self._raised(value, -1)

    def _raised(self, value: int, times: int) -> int:
        """Return value^times in the ring.

        If `value` was drawn as the root of a radicand with some index, each `index` factors of it
        are replaced by the radicand: √2 to the power 3 is 2·√2. Beyond `_MAX_EXPONENT`, the power
        is drawn.

        Raises:
            Undecided: there is a division by 0.
        """
        value %= self.modulus
        if times < 0 and not value:
            raise Undecided("division by 0")
        if abs(times) > _MAX_EXPONENT:
            return self.element("power", value, times)
        if value not in self.roots:
            return pow(value, times, self.modulus)
        # √2 is stored as (2, 2): root^times = radicand^whole · root^rest, with 0 <= rest < index.
        radicand, index = self.roots[value]
        whole, rest = divmod(times, index)
        return self._raised(radicand, whole) * pow(value, rest, self.modulus) % self.modulus

    def _multiplied(self, node: Node, *parts: tuple[Node, int]) -> int:
        """Return the product of parts, each to its integer power, as the element of `node`.

        Equal factors are raised together, also those of the parts, so that √2 · 3√2 is 6.
        """
        factors = Counter[int]()
        for part, times in parts:
            for factor, count in self._factors(part).items():
                factors[factor] += count * times
        self.factors[node] = factors
        return self._product(factors)

    def _factors(self, node: Node) -> Counter[int]:
        """Return the elements whose product is `node`, with their exponents."""
        element = self.of(node)
        return self.factors.get(node) or Counter({element: 1})

    def _product(self, factors: Counter[int]) -> int:
        powers = (self._raised(factor, times) for factor, times in factors.items())
        return math.prod(powers) % self.modulus

    def _power(self, base: Node, exponent: Node) -> int:
        """Return the element of base^exponent."""
        return self._product(self._powers(base, exponent))

    def _powers(self, base: Node, exponent: Node) -> Counter[int]:
        """Return the factors of base^exponent.

        Sums in the exponent are multiplied out, e^(x + 2y) = e^x · (e^y)^2, so that equal powers
        in different spellings get one element. A root, √2 or x^(y/2520), is drawn (`element`).

        Raises:
            Undecided: it is 0^0, or 0 to a negative power.
        """
        # A number other than 0; the `value` of any other node is None.
        if base.value:
            primes = _factored(base.value)
            # 12^x is 2^(2x) · 3^x. A base that is one factor itself, 7 or −1, goes on below.
            if [*primes.values()] != [1]:
                powers = Counter[int]()
                for prime, count in primes.items():
                    multiple = Node("product", (number(count), exponent))
                    powers.update(self._powers(number(prime), multiple))
                return powers
        # Powers depend on the base's element, not on its tree: (x·x)^y is (x^2)^y.
        base_element, powers = self.of(base), Counter[int]()
        if not base_element and not self.of(exponent):
            raise Undecided("0^0")
        # b^(s + t) is b^s · b^t: one factor for each term of the exponent; 3x/2 is (3/2, (x,)).
        for times, factors in _terms(exponent):
            numerator, denominator = times.numerator, times.denominator
            factor_element = self.of(Node("product", factors))
            if not factors:
                # A rational term: 8^(2/3) is the square of a drawn cube root of 8.
                if denominator > 1:
                    radicand, ratio = self._like(base, base_element)
                    root = self.element("root", denominator, radicand)
                    self.roots[root] = (radicand, denominator)
                    powers[root] += numerator
                    if ratio != 1:
                        powers.update(self._powers(number(ratio), number(times)))
                else:
                    for factor, count in self._factors(base).items():
                        powers[factor] += count * numerator
            elif base == _E and denominator == 1 and [part.name for part in factors] == ["ln"]:
                # e^(3 ln x) is x^3.
                powers[self.of(factors[0].args[0])] += numerator
            elif base == _E and denominator <= 2 and factor_element == self.of(_I_PI):
                # e^(iπ/2) = i: a quarter of a turn for each half of iπ.
                quarter_turns = numerator * 2 // denominator
                powers[self.root_of_minus_one] += quarter_turns
            else:
                # x^(3y/2) is r^(3 · 2520 / 2), with a drawn r = x^(y / 2520): x^y is the square of
                # x^(y/2).
                if not base_element:
                    raise Undecided("0 to an unknown power")
                index = denominator if _PARTS % denominator else _PARTS
                root = self.element("power", base_element, factor_element, index)
                powers[root] += numerator * index // denominator
        return powers

    def _like(self, base: Node, element: int) -> tuple[int, Fraction]:
        """Return a former radicand r and c with c · r = `element`, for a rational c > 0; or c = 1.

        √(4n) is 2√n, whatever n is, and so is any root of a positive multiple.
        """
        for radicand in self.radicands if base.value is None and element else ():
            ratio = _rational(element * self.inverse(radicand) % self.modulus, self.modulus)
            # A random element is such a small fraction with a probability below 2^-180.
            if ratio and 0 < ratio < 1 << 32 and ratio.denominator < 1 << 32:
                return radicand, ratio
        if base.value is None and element:
            self.radicands.append(element)
        return element, Fraction(1)

    def _factorial(self, node: Node) -> int:
        """Return the element of `node`!: (n + 2)! is n! (n + 1) (n + 2).

        Also (n - 2)! is n! / ((n - 1) n). n! is drawn, a pseudo-random element for each n.
        """
        # n + 5/2 has the shift 2 and the base n + 1/2.
        shift = sum(int(times) for times, factors in _terms(node) if not factors)
        shift = max(-_MAX_SHIFT, min(shift, _MAX_SHIFT))
        base = (self.of(node) - shift) % self.modulus
        # The factors between base! and (base + shift)!.
        low, high = sorted((0, shift))
        product = math.prod(base + k for k in range(low + 1, high + 1))
        start = self.element("call", "factorial", base) if base else 1
        return start * (product if shift >= 0 else self.inverse(product))

    def _call(self, name: str, args: Sequence[Node], values: list[int]) -> int:
        """Return the element of the function `name` at `args`, so that known identities hold.

        Sines and their like are computed from exponentials, binomials from factorials, logarithms
        from natural ones. Any other function's value is drawn: a pseudo-random element that depends
        only on `name` and `values`.

        Args:
            name: the function.
            args: its arguments.
            values: the elements of its arguments.
        """
        if len(args) == 1 and name in _CIRCULAR:
            # With turn = e^(ix), 2 cos x is turn + 1/turn, and 2 sin x is (turn - 1/turn) / i;
            # hyperbolic functions have 1 instead of i.
            unit = number(1) if name.endswith("h") else _I
            turn = self._power(_E, Node("product", (unit, *args)))
            cosine = turn + self.inverse(turn)
            sine = (turn - self.inverse(turn)) * self.inverse(self.of(unit))
            above, below = {
                "sin": (sine, 2), "cos": (cosine, 2), "tan": (sine, cosine),
                "cot": (cosine, sine), "sec": (2, cosine), "csc": (2, sine),
            }[name[:3]]  # fmt: skip
            return above * self.inverse(below)
        if name == "binomial" and len(args) == 2:
            n, k = args
            below = self._factorial(k) * self._factorial(difference(n, k))
            return self._factorial(n) * self.inverse(below)
        if name == "exp" and len(values) == 1:
            return self._power(_E, args[0])
        if name in ("ln", "log", "lg") and len(args) < 3:
            if not values[0] or values[1:] == [1]:
                raise Undecided("no logarithm")
            ln = self.element("call", "ln", values[0])
            if name == "lg":
                base = self.of(number(10))
            elif len(args) > 1:
                base = values[1]
            else:
                return ln
            return ln * self.inverse(self.element("call", "ln", base))
        # Drawn from the square, since |x| and |−x| are equal.
        if name in ("abs", "norm"):
            return self.element("call", name, *(value * value % self.modulus for value in values))
        # gcd(4, 6) is gcd(6, 4); the order of `1, 2, \ldots` counts.
        if name in _UNORDERED and not any("ldots" in free_symbols(part) for part in args):
            values = sorted(values)
        return self.element("call", name, *values)


def _prime(start: int) -> int:
    """Return a prime of 64 bits and of 5 mod 8, so that −1 has a square root (`root_of_minus_one`).

    Args:
        start: a random integer, whose last 63 bits are used.
    """
    candidate = (1 << 63) + start % (1 << 63) // 8 * 8 + 5
    # Fermat's test. A composite number that passes is rare, and as hard to foresee.
    while math.gcd(candidate, _SMALL_FACTORS) > 1 or pow(2, candidate - 1, candidate) != 1:
        candidate += 8
    return candidate


def _differentials(body: Node) -> list[str]:
    """Return the factors from the first differential on: d and y of x dy.

    Empty if it is one symbol at the end, dy, which may also be in a fraction.
    """
    parts = body.args if body.kind == "product" else (body,)
    is_first = (part.kind == "symbol" and re.fullmatch("d[a-z]?", part.name) for part in parts)
    factors = parts[next((n for n, found in enumerate(is_first) if found), len(parts)) :]
    return list(map(spelled, factors)) if len(factors) > 1 else []


def _is_word(node: Node) -> bool:
    """Return True for a symbol of several capital letters, which may be a word: `NO`."""
    return (
        node.kind == "symbol" and len(node.name) > 1 and node.name.isalpha() and node.name.isupper()
    )


def _is_scalar(node: Node) -> bool:
    """Return True if `node` denotes a number, rather than infinity, dots, a set or an operator.

    x and 2x + 1 do. Symbols that do not: `\\mathbb{R}` (`bb:R`), dots, a bare `\\sin`.
    """
    if node.kind == "symbol":
        is_set = node.name.startswith("bb:")
        return not is_set and node.name not in ("infinity", "ldots") and node.name not in FUNCTIONS
    # `VALUED` has no tuples, sets and integrals. All parts count: ln ∞ − ln ∞ is not 0, nor is a
    # divergent integral minus itself.
    return node.kind in VALUED and all(map(_is_scalar, node.args))


def _factored(value: Fraction) -> Counter[int]:
    """Return the prime factors of a rational with their exponents: −3/4 is {-1: 1, 3: 1, 2: -2}.

    Primes from `_MAX_PRIME` stay multiplied, as one factor of the numerator and one of the
    denominator.
    """
    factors = Counter({-1: 1} if value < 0 else {})
    for rest, sign in ((abs(value.numerator), 1), (value.denominator, -1)):
        for prime in range(2, _MAX_PRIME):
            while rest % prime == 0:
                factors[prime] += sign
                rest //= prime
            if rest < prime:
                break
        if rest > 1:
            factors[rest] += sign
    return factors


def _terms(node: Node) -> list[Term]:
    """Multiply an expression out; return each term as (rational factor, other factors).

    (x + 2) · 3 is [(3, (x,)), (6, ())]. A product of more than `_MAX_TERMS` terms stays one term.
    """
    match node:
        case Node("number", value=value) if value is not None:
            return [(value, ())]
        case Node("sum", parts):
            return [term for part in parts for term in _terms(part)]
        case Node("degree", (angle,)):
            return [(times / 180, (*factors, _PI)) for times, factors in _terms(angle)]
        case Node("product", parts):
            sides = [_terms(part) for part in parts]
            if math.prod(map(len, sides)) <= _MAX_TERMS:
                # (a, x) times (b, y) is (ab, x + y), where x and y are tuples of factors.
                products: list[Term] = [(Fraction(1), ())]
                for side in sides:
                    products = [(a * b, x + y) for a, x in products for b, y in side]
                return products
        case Node("quotient", (above, below)):
            divisors = _terms(below)
            # (x + 1) / 2y is x/2 · 1/y + 1/2 · 1/y.
            if len(divisors) == 1 and divisors[0][0]:
                ((divisor, others),) = divisors
                # (1/y,) for 2y, () for 2.
                inverse: tuple[Node, ...] = ()
                if others:
                    inverse = (Node("quotient", (number(1), Node("product", others))),)
                return [(times / divisor, factors + inverse) for times, factors in _terms(above)]
    return [(Fraction(1), (node,))]


def same_expression(one: Node, two: Node) -> Verdict:
    """Decide whether two trees, numbers or expressions with symbols, are equal.

    Raises:
        Undecided: there is a division by 0 or a part without a known value; or the trees differ in
            the ring, but have an integral, sum or limit; or two numbers cannot be told apart.
        TooHard: a limit of work is passed.
    """
    ring = Fingerprint(salt_of(one, two))
    if not (free_symbols(one) or free_symbols(two) or is_opaque(one) or is_opaque(two)):
        return _same_number(one, two, ring)
    if ring.of(one) == ring.of(two):
        return Verdict(True, "identity")
    # The ring does not evaluate integrals, sums and limits: with one inside, different elements
    # prove nothing.
    if any(part.kind == "calculus" for tree in (one, two) for part in nodes(tree)):
        raise Undecided("integrals and sums")
    # They differ, or are equal only by an identity that `Fingerprint` lacks, as ln(x^2) and 2 ln x
    # may be.
    return Verdict(False, "identity")


def salt_of(one: Node, two: Node) -> str:
    """Return both sides as one text, the same for either order; it seeds the random elements."""
    return "\x1e".join(sorted((spelled(one), spelled(two))))


def _same_number(one: Node, two: Node, ring: Fingerprint) -> Verdict:
    """Decide whether two trees without symbols denote the same number.

    Compare them as exact rationals, else in the ring (`ring`), else as balls, whose precision
    follows from the sizes of the two trees.

    Raises:
        Undecided: rounding errors hide a possible difference.
        TooHard: a limit of work or precision is passed.
    """
    try:
        left, right = exact_value(one), exact_value(two)
    except TooHard:
        # A power tower is too large to compute, but the ring can still prove it equal.
        left = right = None
    if left is not None and right is not None:
        return Verdict(left == right, "number")
    if ring.of(one) == ring.of(two):
        return Verdict(True, "identity")
    # Without 0 in the ball of 50 digits the numbers differ, as most wrong answers do.
    if not gap(constant(one), constant(two)).has_zero:
        return Verdict(False, "numeric")
    roots: dict[Node, int] = {}
    size = _size(one, roots) + _size(two, roots)  # in bits; also fills `roots`
    # The root bound (the theorem at the top): a difference that is not 0 is at least 2^-bits. The
    # product of the degrees bounds the degree of the number field; `size` bounds the numerator and
    # the denominator of the difference.
    bits = 4 * math.prod(roots.values()) * size + 8
    if bits > _MAX_BOUND_BITS:
        raise TooHard("a difference too small to see")
    # A bit is log10(2) = 0.30103 digits; 40 digits more for rounding errors.
    digits = int(bits * 0.302) + 40
    deep = gap(constant(one, digits), constant(two, digits))
    if not deep.has_zero:
        return Verdict(False, "numeric")
    # mpmath's mag(radius) is log2 of the radius, rounded up. In a ball that is wider than the bound
    # 2^-bits a difference may hide.
    if deep.radius and -deep.radius.context.mag(deep.radius) < bits:
        raise Undecided("rounding errors")
    # Any difference is below the bound, and so it is 0. For numbers beyond roots, such as π, the
    # bound is only a conjecture: "numeric", not "algebraic".
    return Verdict(True, "numeric" if _is_beyond(one) or _is_beyond(two) else "algebraic")


def _is_beyond(node: Node) -> bool:
    """Return True if a number has more than rationals, roots and i in it, such as π or a sine.

    Such numbers may be transcendental: their equality is evidence ("numeric"), no proof.
    """
    if node.kind == "power" and exact_value(node.args[1]) is None:
        return True
    kinds = ("number", "sum", "product", "quotient", "power", "root", "percent")
    is_algebraic = node.kind in kinds or node == _I
    return not is_algebraic or any(map(_is_beyond, node.args))


def _size(node: Node, roots: dict[Node, int]) -> float:
    """Return the size of a number for the root bound, in bits; add its roots to `roots`.

    The size bounds numerator and denominator: 3/4 has 3 bits, and a sum or product the bits of its
    parts and a few more. `roots` maps each different root in the tree to its degree, √2 to 2: the
    product of the degrees is the degree of the number field. Functions and constants count as if
    they were roots of degree 2.
    """
    value = exact_value(node)
    if value is not None:
        return max(value.numerator.bit_length(), value.denominator.bit_length())
    power = None
    if node.kind == "power":
        radicand, power = node.args[0], exact_value(node.args[1])
    elif node.kind == "root":
        index, radicand = exact_value(node.args[0]), node.args[1]
        power = 1 / index if index else None
    if power is not None:
        if power.denominator > 1:
            roots[node] = power.denominator
        # Of x^(m/n): m times the size of x. The index n counts by its degree only.
        return _size(radicand, roots) * abs(power.numerator)
    if node.kind not in ("sum", "product", "quotient"):
        # Roots inside a function do not multiply the degree again.
        roots[node] = 2
        # Each of nested functions may double the digits that cancel: 1 - cos x is nearly x²/2.
        is_nested = any(part.kind == "call" for part in nodes(node) if part is not node)
        return _parts_size(node, {}) * (2 if is_nested else 1) + _magnitude(node)
    return _parts_size(node, roots)


def _parts_size(node: Node, roots: dict[Node, int]) -> float:
    """Return the size of a number whose parts are added, multiplied or given to a function.

    See `_size`, also for `roots`.
    """
    # One bit more for each part, and 8 to be safe.
    return sum(_size(part, roots) for part in node.args) + len(node.args) + 8


def _magnitude(node: Node) -> float:
    """Return the bits of a function's value, and of its distance from a limit.

    exp(-1000) is 2^-1442.7 and has 1442. tanh(200) differs from 1 by 2^-576: for a hyperbolic or
    circular function, three bits for each unit of the argument, since e^-2x is about 2^-3x.
    """
    # `constant` returns a `Ball` here: `_size` calls this function only if `exact_value` found no
    # rational value.
    middle = constant(node).middle
    bits = float(abs(middle.context.mag(middle))) if middle else 0.0
    if node.name in _CIRCULAR:
        argument = constant(node.args[0])
        bits += 3 * math.ceil(abs(getattr(argument, "middle", argument)))
    return bits


def proportional(left: Node, right: Node) -> int:
    """Return the sign of the rational constant c with left = c · right for all symbols, else 0.

    2x + 2 and x + 1 give 1, -x and x give -1, x and x + 1 give 0.

    Raises:
        Undecided, TooHard: see `same_expression`.
    """
    # Any two constants except 0 are proportional: `0 = 1` would be the same as `0 = 2`.
    if not (free_symbols(left) or free_symbols(right)):
        return 0
    # The ratio left / right at random points of two rings. If both denote the same small
    # rational, it is constant, with a probability of error below 2^-100.
    ratios = []
    for attempt in ("one", "two"):
        ring = Fingerprint(attempt + salt_of(left, right))
        below = ring.of(right)
        if not below:
            return 0
        ratio = ring.of(left) * ring.inverse(below) % ring.modulus
        ratios.append(_rational(ratio, ring.modulus))
    one, other = ratios
    if not one or one != other:
        return 0
    return 1 if one > 0 else -1


def _rational(element: int, modulus: int) -> Fraction | None:
    """Return the rational that an element of the integers modulo `modulus` denotes.

    `modulus` - 3 denotes -3. None if the element denotes no rational with numerator and denominator
    below about 2^100.
    """
    # Wang 1981: Euclid's algorithm, stopped half-way; `rest` is `times` · `element` in the ring.
    (last_rest, last_times), (rest, times) = (modulus, 0), (element, 1)
    while rest > 1 << 100:
        quotient = last_rest // rest
        (last_rest, last_times), (rest, times) = (
            (rest, times),
            (last_rest - quotient * rest, last_times - quotient * times),
        )
    return Fraction(rest, times) if abs(times) <= 1 << 100 else None
