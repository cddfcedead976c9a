"""Numerical value of a tree at a point: doubles first, 50 digits where doubles cannot tell.

Two expressions are equal when their values agree at several points, each symbol set to a number
that depends on its name alone. Chance agreement has probability about zero (Schwartz, 1980,
doi:10.1145/322217.322225), and, unlike simplification, the work is a fixed number of operations.
"""

import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from lib.verifier.exact import exact_value, summation_bounds
from lib.verifier.fields import Field
from lib.verifier.limits import MAX_LOG2, MAX_OPERATIONS
from lib.verifier.syntax import Node, TooHard


class Undefined(ValueError):
    """The expression has no value at this point: a pole, or a name with no value."""


class Evaluation:
    """One evaluation of trees at one point.

    Attributes:
        largest: largest magnitude that was added, which tells how much a small result lost.
        branched: a root, power or logarithm met a number that is not a positive real.
    """

    def __init__(self, field: Field, values: Mapping[str, Any]) -> None:
        self.field = field
        self.values = dict(values)
        self.largest = 0.0
        self.lost = 1.0
        self.branched = False
        self.operations = 0

    def value(self, node: Node) -> Any:
        """The value of `node`.

        Raises:
            Undefined: there is none.
            TooHard: beyond the limits.
        """
        self.operations += 1
        if self.operations > MAX_OPERATIONS:
            raise TooHard(f"more than {MAX_OPERATIONS} operations")
        if node.kind == "number":
            return self.field.number(node.value)
        rule = _RULES.get(node.kind)
        if rule is None:
            raise Undefined(f"no value for a {node.kind}")
        try:
            return self._checked(rule(self, node))
        except (OverflowError, ZeroDivisionError, ValueError) as error:
            if isinstance(error, Undefined | TooHard):
                raise
            if isinstance(error, OverflowError):
                raise TooHard("overflow") from error
            raise Undefined(str(error)) from error

    def _checked(self, value: Any) -> Any:
        size = abs(value)
        if size != size or size == math.inf:
            raise TooHard("infinite value")
        if size and not self.field.is_double and abs(self._log2(size)) > MAX_LOG2:
            raise TooHard("magnitude")
        return value

    @staticmethod
    def _log2(size: Any) -> float:
        _, _, exponent, bits = size._mpf_
        return float(exponent + bits)

    def symbol(self, node: Node) -> Any:
        """A constant, or the value that the point gives."""
        if node.name in self.values:
            return self.field.number(self.values[node.name])
        if node.name == "pi":
            return self.field.number(1) * self.field.pi
        if node.name == "e":
            return self.field.exp(self.field.number(1))
        if node.name == "i":
            return self.field.number(1j)
        raise Undefined(f"no value for {node.name}")

    def sum(self, node: Node) -> Any:
        """Adds up, and notes how many digits cancelled."""
        total = self.value(node.args[0])
        biggest = abs(total)
        for term in node.args[1:]:
            addend = self.value(term)
            biggest = max(biggest, abs(addend))
            total = total + addend
        size = abs(total)
        if biggest:
            self.largest = max(self.largest, float(min(biggest, 1e300)))
            self.lost = max(self.lost, float(min(biggest / size, 1e300)) if size else 1e300)
        return total

    def product(self, node: Node) -> Any:
        """Multiplies."""
        total = self.value(node.args[0])
        for factor in node.args[1:]:
            total = total * self.value(factor)
        return total

    def quotient(self, node: Node) -> Any:
        """Divides; by nothing that is zero up to rounding."""
        above, below = self.value(node.args[0]), self.value(node.args[1])
        if not below:
            raise Undefined("division by zero")
        return above / below

    def power(self, node: Node) -> Any:
        """Raises; integer exponents exactly, others through the logarithm."""
        base = self.value(node.args[0])
        exact = exact_value(node.args[1])
        if exact is not None and exact.denominator == 1 and abs(exact) < 10_000:
            self._bounded_power(base, float(exact))
            if not base and exact < 0:
                raise Undefined("division by zero")
            return base ** int(exact)
        if exact is not None and exact.denominator % 2 and _is_real(base) and _real(base) < 0:
            self.branched = True
            size = self.field.exp(self.field.log(-base) * self.field.number(exact))
            return -size if exact.numerator % 2 else size
        exponent = self.field.number(exact) if exact is not None else self.value(node.args[1])
        return self._general_power(base, exponent)

    def _general_power(self, base: Any, exponent: Any) -> Any:
        if not base:
            if _real(exponent) > 0:
                return base
            raise Undefined("power of zero")
        if not (_is_real(base) and _real(base) > 0):
            self.branched = True
        self._bounded_power(base, abs(exponent))
        return self.field.exp(self.field.log(base) * exponent)

    def _bounded_power(self, base: Any, exponent: Any) -> None:
        size = abs(base)
        if size and exponent * abs(self._magnitude(size)) > MAX_LOG2:
            raise TooHard("power")

    def _magnitude(self, size: Any) -> float:
        return math.log2(size) if self.field.is_double else self._log2(size) or 1.0

    def root(self, node: Node) -> Any:
        """The real root where there is one, else the principal one."""
        index = exact_value(node.args[0])
        radicand = self.value(node.args[1])
        odd = index is not None and index.denominator == 1 and index % 2 == 1
        if odd and index and _is_real(radicand) and _real(radicand) < 0:
            self.branched = True
            return -self._general_power(-radicand, self.field.number(1 / index))
        exponent = 1 / (self.field.number(index) if index else self.value(node.args[0]))
        return self._general_power(radicand, exponent)

    def factorial(self, node: Node) -> Any:
        """Gamma of one more."""
        return self._gamma(self.value(node.args[0]) + 1)

    def _gamma(self, value: Any) -> Any:
        if abs(value) > 2_000 or (self.field.is_double and abs(value) > 160):
            raise TooHard("gamma")
        return self.field.gamma(value)

    def percent(self, node: Node) -> Any:
        """Hundredths."""
        return self.value(node.args[0]) / 100

    def degree(self, node: Node) -> Any:
        """Degrees in radians."""
        return self.value(node.args[0]) * self.field.pi / 180

    def unit(self, node: Node) -> Any:
        """The number without its unit."""
        return self.value(node.args[0])

    def calculus(self, node: Node) -> Any:
        """A finite sum or product, term by term; else opaque, as a name with its parts."""
        bounds = summation_bounds(node)
        if bounds is None:
            raise Undefined(f"{node.name} is for the worker")
        name, first, last = bounds
        outer = self.values.get(name)
        total = self.field.number(int(node.name == "prod"))
        for index in range(first, last + 1):
            self.values[name] = index
            term = self.value(node.args[2])
            total = total * term if node.name == "prod" else total + term
        self.values.pop(name, None)
        if outer is not None:
            self.values[name] = outer
        return total

    def call(self, node: Node) -> Any:
        """A function that is known, or any other as a number drawn from its name and arguments."""
        known = self.field.function(node.name)
        if known is not None and len(node.args) == 1:
            return known(self.value(node.args[0]))
        rule = _CALLS.get(node.name)
        if rule is not None:
            return rule(self, [self.value(argument) for argument in node.args])
        return self._opaque(node)

    def _opaque(self, node: Node) -> Any:
        spelled = [_rounded(self.value(argument)) for argument in node.args]
        drawn = zlib.crc32(f"{node.name}({','.join(spelled)})".encode())
        return self.field.number(0.3 + 2.4 * (drawn & 0xFFFFF) / 0x100000)

    def logarithm(self, values: list[Any]) -> Any:
        """Natural, or to the base that is given."""
        if not values[0]:
            raise Undefined("logarithm of zero")
        if not (_is_real(values[0]) and _real(values[0]) > 0):
            self.branched = True
        result = self.field.log(values[0])
        return result / self.field.log(values[1]) if len(values) > 1 else result

    def binomial(self, values: list[Any]) -> Any:
        """Through gamma, so that symbols may be anything."""
        above, below = values
        parts = self._gamma(below + 1) * self._gamma(above - below + 1)
        return self._gamma(above + 1) / parts

    def real_only(self, values: list[Any], choose: Callable[[list[Any]], Any]) -> Any:
        """A function of real numbers, such as max or floor."""
        if not all(_is_real(value) for value in values):
            raise Undefined("needs real numbers")
        return self.field.number(choose([_real(value) for value in values]))

    def multiple(self, values: list[Any], name: str) -> Any:
        """Opaque gcd and lcm of no integers; of different things, lcm is the product."""
        spelled = sorted(_rounded(value) for value in values)
        if name == "lcm" and len(set(spelled)) == len(spelled):
            total = values[0]
            for value in values[1:]:
                total = total * value
            return total
        drawn = zlib.crc32(f"{name}({','.join(spelled)})".encode())
        return self.field.number(0.3 + 2.4 * (drawn & 0xFFFFF) / 0x100000)


def _is_real(value: Any) -> bool:
    imaginary = getattr(value, "imag", 0)
    return not imaginary or abs(imaginary) < 1e-13 * abs(value)


def _real(value: Any) -> Any:
    return getattr(value, "real", value)


def _rounded(value: Any) -> str:
    number = complex(value)
    return (
        f"{number.real:.8e}{number.imag:+.8e}" if abs(number.imag) > 1e-12 else f"{number.real:.8e}"
    )


def _reciprocal(name: str) -> Callable[[Evaluation, list[Any]], Any]:
    def apply(evaluation: Evaluation, values: list[Any]) -> Any:
        function = evaluation.field.function(name)
        below = function(values[0]) if function else 0
        if not below:
            raise Undefined("pole")
        return 1 / below

    return apply


def _inverse_of_reciprocal(name: str) -> Callable[[Evaluation, list[Any]], Any]:
    def apply(evaluation: Evaluation, values: list[Any]) -> Any:
        function = evaluation.field.function(name)
        if not values[0] or function is None:
            raise Undefined("pole")
        return function(1 / values[0])

    return apply


_CALLS: dict[str, Callable[[Evaluation, list[Any]], Any]] = {
    "ln": Evaluation.logarithm,
    "log": Evaluation.logarithm,
    "lg": lambda evaluation, values: evaluation.logarithm([values[0], evaluation.field.number(10)]),
    "exp": lambda evaluation, values: evaluation._general_power(
        evaluation.field.exp(evaluation.field.number(1)), values[0]
    ),
    "abs": lambda evaluation, values: evaluation.field.number(abs(values[0])),
    "max": lambda evaluation, values: evaluation.real_only(values, max),
    "min": lambda evaluation, values: evaluation.real_only(values, min),
    "floor": lambda evaluation, values: evaluation.real_only(values, lambda v: math.floor(v[0])),
    "ceil": lambda evaluation, values: evaluation.real_only(values, lambda v: math.ceil(v[0])),
    "sgn": lambda evaluation, values: evaluation.real_only(
        values, lambda v: (v[0] > 0) - (v[0] < 0)
    ),
    "Re": lambda evaluation, values: evaluation.field.number(_real(values[0])),
    "binomial": Evaluation.binomial,
    "factorial": lambda evaluation, values: evaluation._gamma(values[0] + 1),
    "Gamma": lambda evaluation, values: evaluation._gamma(values[0]),
    "gcd": lambda evaluation, values: evaluation.multiple(values, "gcd"),
    "lcm": lambda evaluation, values: evaluation.multiple(values, "lcm"),
    "cot": _reciprocal("tan"),
    "sec": _reciprocal("cos"),
    "csc": _reciprocal("sin"),
    "coth": _reciprocal("tanh"),
    "csch": _reciprocal("sinh"),
    "sech": _reciprocal("cosh"),
    "arccot": _inverse_of_reciprocal("arctan"),
    "arcsec": _inverse_of_reciprocal("arccos"),
    "arccsc": _inverse_of_reciprocal("arcsin"),
}

_RULES: dict[str, Callable[[Evaluation, Node], Any]] = {
    "symbol": Evaluation.symbol,
    "sum": Evaluation.sum,
    "product": Evaluation.product,
    "quotient": Evaluation.quotient,
    "power": Evaluation.power,
    "root": Evaluation.root,
    "factorial": Evaluation.factorial,
    "percent": Evaluation.percent,
    "degree": Evaluation.degree,
    "unit": Evaluation.unit,
    "calculus": Evaluation.calculus,
    "call": Evaluation.call,
}
