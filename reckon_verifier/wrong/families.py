r"""Pairs wrong by construction, derived from every reference at hand.

A family takes a reference and gives pairs (reference, answer) of which it is certain, without the
verifier, that the answer is wrong; for an uncertain reference it gives none. `Case` decides: is the
reference a plain number (and which), an expression without relation, list, ± or words, a list, a
pair in brackets, a letter or a word? Some families put the reference into a pair of their own
first, `5` into `5 \text{ cm}` | `5 \text{ mm}`.

"About 12" is in no family: labelled sets count it as 12. Empty marks, echoes and openers are in
the family "published" (arXiv:2507.08794, arXiv:2505.22203, and the threads of public graders).
"""

import functools
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

TEMPLATES: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("templates.json").read_text(encoding="utf-8")
)
"""Wrong answers of a family: `<x>` is the reference, `<b>` without `\\text`, `<o>` another;
before ≠ a reference that a family puts it into first."""


def both_ways(pairs: list[str]) -> list[tuple[str, str]]:
    """Split "one | two" and list each pair in both orders."""
    split = (pair.split(" | ") for pair in pairs)
    return [order for one, two in split for order in ((one, two), (two, one))]


UNITS = both_ways(TEMPLATES["units"])
_INTEGER = r"\d{1,3}(?:,\d{3})+|\d+"
_NUMBER = re.compile(rf"(-?)\s*((?:{_INTEGER})(?:\.\d+)?|\.\d+)")
_FRACTION = re.compile(
    r"(-?)\s*(?:\\[dt]?frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}|(\d+)\s*/\s*(\d+))"
)
_EXPRESSION = re.compile(
    r"(?:[0-9A-Za-z(){}|^+\-*/. !]|\\(?!text|pm|mp|infty|in\b|le|ge|ne|d?ots))+"
)
_COMMANDS = re.compile(
    r"[dt]?frac|sqrt|pi|cdot|times|left|right|sin|cos|tan|ln|log|alpha|beta|theta"
)
_ASKS_ROUNDING = re.compile(
    r"round|nearest|decimal|approx|estimate|significant|hundredth|tenth|digit|percent|≈", re.I
)
_ASKS_EXTREME = re.compile(r"least|most|maxim|minim|larg|small|great|high|more|less|bound", re.I)
_OTHER = Fraction(90731, 100)
"""A value that no reference has."""


class Pair(NamedTuple):
    """A reference and a wrong answer, bare or in a completion."""

    reference: str
    answer: str
    problem: str = ""
    is_text: bool = False
    """True for a completion: the answer is extracted first."""


def filled(name: str, case: "Case", *, is_text: bool = False, **slots: str) -> Iterator[Pair]:
    """Fill the templates of a name; a slot `one` stands in them as `<one>`."""
    for template in TEMPLATES[name]:
        for slot, text in {"x": case.text, "b": case.bare, **slots}.items():
            template = template.replace(f"<{slot}>", text)
        own, _, answer = template.rpartition(" ≠ ")
        yield Pair(own or case.text, answer, "" if own else case.problem, is_text)


class Case:
    """A reference with its problem, and its certain properties."""

    def __init__(self, text: str, problem: str = "") -> None:
        self.text = text.strip().strip("$").strip()
        self.problem = problem

    def answered(self, *answers: str) -> Iterator[Pair]:
        """Pair this reference with each answer."""
        for answer in answers:
            yield Pair(self.text, answer, self.problem)

    @functools.cached_property
    def value(self) -> Fraction | None:
        """Return the reference's number, None if it is not a plain one."""
        return value(self.text)

    @functools.cached_property
    def integer(self) -> int | None:
        whole = self.value is not None and self.value.denominator == 1
        return (
            int(self.text.replace(",", ""))
            if whole and re.fullmatch(rf"-?(?:{_INTEGER})", self.text)
            else None
        )

    @functools.cached_property
    def is_expression(self) -> bool:
        """Return True for a number but 0, or a formula: no relation, list, set, ±, unit or word."""
        if self.value is not None:
            return self.value != 0
        commands = re.findall(r"\\([A-Za-z]+)", self.text)
        plain = re.sub(r"\\[A-Za-z]+", " ", self.text)
        return (
            _EXPRESSION.fullmatch(self.text) is not None
            and all(map(_COMMANDS.fullmatch, commands))
            and re.search(r"[A-Za-z]{2}|[A-Z]", plain) is None
            and re.search(r"[1-9a-z]", plain) is not None
            and not re.search(r"[-+*/^.!]$|\.\.|^[\[(|].*[|)\]]$|\^\s*\{?\\circ", self.text)
        )

    @functools.cached_property
    def items(self) -> list[str]:
        """Return the numbers of a list or set, all different, at least two; else nothing."""
        body = re.fullmatch(r"(?:\\left)?\\\{(.+?)(?:\\right)?\\\}|([^(\[{].*)", self.text)
        parts = re.split(r"[,;]\s*", (body[1] or body[2]).strip()) if body else []
        values = [value(part) for part in parts]
        is_list = len(parts) > 1 and None not in values and len(set(values)) == len(values)
        # `1,234` may be one number.
        grouped = value(self.text) is not None or re.search(r"\d,\d{3}(?!\d)", self.text)
        return [part.strip() for part in parts] if is_list and not grouped else []

    @functools.cached_property
    def ordered(self) -> tuple[str, list[str], str] | None:
        """Return brackets and entries of a pair, interval or longer tuple of different numbers."""
        match = re.fullmatch(r"(?:\\left)?\s*([(\[])([^()\[\]]+?)(?:\\right)?\s*([)\]])", self.text)
        parts = [part.strip() for part in match[2].split(",")] if match else []
        values = [value(part) for part in parts]
        if not match or len(parts) < 2 or None in values or len(set(values)) < len(values):
            return None
        return match[1], parts, match[3]

    @property
    def bare(self) -> str:
        """Return the text without `\\text` and brackets around it."""
        return re.sub(r"\\text\{(.*)\}", r"\1", self.text).strip("() .")

    def mentions(self, word: str) -> bool:
        """Return True if reference or problem has this word: its family is then uncertain."""
        return word.lower() in f"{self.text} {self.problem}".lower()

    @property
    def asks_rounding(self) -> bool:
        return _ASKS_ROUNDING.search(self.problem) is not None


def value(text: str) -> Fraction | None:
    """Read a plain number from `text`, without the verifier."""
    if match := _NUMBER.fullmatch(text.strip()):
        size = Fraction(match[2].replace(",", ""))
        return -size if match[1] else size
    if match := _FRACTION.fullmatch(text.strip()):
        above, below = match[2] or match[4], match[3] or match[5]
        if int(below):
            return Fraction(int(above), int(below)) * (-1 if match[1] else 1)
    return None


def written(number: Fraction | int) -> str:
    """Write an integer or a finite decimal in digits, another fraction as a fraction."""
    number = Fraction(number)
    below = number.denominator
    while below % 2 == 0:
        below //= 2
    while below % 5 == 0:
        below //= 5
    if number.denominator == 1:
        return str(number.numerator)
    if below > 1:
        sign = "-" if number < 0 else ""
        return rf"{sign}\frac{{{abs(number.numerator)}}}{{{number.denominator}}}"
    with localcontext(prec=60):
        return f"{Decimal(number.numerator) / Decimal(number.denominator):f}"


def others(case: Case) -> list[str]:
    """List values unlike an expression's: its neighbour, a common one and a far one."""
    if case.value is None:
        return [written(_OTHER)]
    return [written(one) for one in (case.value + 1, 99, _OTHER) if one != case.value]


def rounded(number: Fraction, digits: int, rounding: str = ROUND_HALF_EVEN) -> Decimal:
    """Round `number` to so many significant digits."""
    with localcontext(prec=digits, rounding=rounding):
        return Decimal(number.numerator) / Decimal(number.denominator)


def off_by_one(number: Decimal) -> Decimal:
    """Add one to the last place of `number`."""
    sign, digits, exponent = number.as_tuple()
    with localcontext(prec=len(digits) + 5):
        return number + Decimal((sign, (1,), int(exponent)))


def wrong_roundings(number: Fraction, *digits: int) -> Iterator[str]:
    """Write `number` with so many digits, the last one wrong, or the rest cut off."""
    for count in digits:
        right, cut = rounded(number, count), rounded(number, count, ROUND_DOWN)
        yield f"{off_by_one(right):f}"
        if cut != right:
            yield f"{cut:f}"


def scientific(number: Decimal) -> str:
    """Write all digits of `number`, as mantissa and power of ten."""
    sign, digits, exponent = number.as_tuple()
    mantissa = "".join(map(str, digits))
    power = int(exponent) + len(digits) - 1
    return rf"{'-' * sign}{mantissa[0]}.{mantissa[1:] or '0'}\times 10^{{{power}}}"


# Families ----------------------------------------------------------------------------------------


Family = Callable[[Case], Iterator[Pair]]


def signs(case: Case) -> Iterator[Pair]:
    """Turn the sign of a number or an expression; edits.tsv turns those of terms."""
    text = case.text
    if case.value:
        yield from case.answered(text[1:] if text.startswith("-") else f"-{text}")
    elif case.is_expression and not re.search(r"[Cc]|log|ln", text):
        yield from case.answered(rf"-({text})", rf"-1\cdot({text})")


def large_integers(case: Case) -> Iterator[Pair]:
    """Write neighbours of an integer and of powers built from it, in digits and powers of ten."""
    number = case.integer
    if number is None or abs(number) < 10:
        return
    for near in (number - 1, number + 1, number + 10):
        yield from case.answered(scientific(Decimal(near)))
    if not case.asks_rounding:
        for digits in range(1, len(str(abs(number)))):
            short = rounded(Fraction(number), digits)
            if short != number:
                yield from case.answered(scientific(short), f"{short:.{digits - 1}e}")
    base, power = 2 + abs(number) % 11, 30 + abs(number) % 70
    exact, power_text = base**power, f"{base}^{{{power}}}"
    for near in (exact - 1, exact + 1, 10 * exact):
        yield Pair(power_text, str(near))
        yield Pair(str(near), power_text)
        yield Pair(f"{power_text}-1", str(near if near == exact + 1 else near + 1))
    for digits in (5, 8, 15, 18):
        short = rounded(Fraction(exact), digits)
        if short != exact:
            yield Pair(power_text, scientific(off_by_one(short)))
            yield Pair(power_text, f"{int(short)}")


def decimals(case: Case) -> Iterator[Pair]:
    """Round the reference wrongly, or round a finite decimal that needs no rounding."""
    if case.value is None or not case.value or case.asks_rounding:
        return
    number = abs(case.value)
    sign = "-" * (case.value < 0)
    for digits in (1, 2, 3):
        if (short := rounded(number, digits)) != rounded(number, 40):
            yield from case.answered(f"{sign}{short:f}")
    wrong = wrong_roundings(number, 4, 6, 8, 12, 17)
    yield from case.answered(*(f"{sign}{text}" for text in wrong))
    yield from case.answered(
        f"{written(case.value * 10)}.5", rf"{written(case.value * 10)}\%" if number < 1 else "-0.5"
    )
    if number.denominator == 1 and 1 < number < 10**9 and math.isqrt(int(number)) ** 2 != number:
        with localcontext(prec=50):
            root = Fraction(Decimal(int(number)).sqrt())
        for text in wrong_roundings(root, 4, 6, 9, 16):
            yield Pair(rf"\sqrt{{{number}}}", text)


def roundings(case: Case) -> Iterator[Pair]:
    """Leave a value unrounded, or round it wrongly, though the problem asks to round."""
    number = case.integer
    if number is None or number < 1:
        return
    for name, size in (("ten", 10), ("hundred", 100), ("thousand", 1000)):
        exact = size * (number % 89 + 1) + (number % (size - 1) + 1) % (size // 2)
        if exact % size:
            for answer in (exact, exact - exact % size + 1):
                yield Pair(str(exact - exact % size), str(answer), f"Round to the nearest {name}.")
    yield Pair(str(number), f"{number}.29", "Give the answer to the nearest integer.")
    yield Pair(f"{number}.3", f"{number}.34", "Round to the nearest tenth.")
    yield Pair(f"{number}.34", f"{number}.3", "Round to the nearest hundredth.")


def units(case: Case) -> Iterator[Pair]:
    """Give the same number two different units."""
    if case.value is None or case.value in (0, -40) or "/" in case.text:
        return  # -40 °C is -40 °F.
    text = case.text
    for one, two in UNITS:
        for shape in ("%s%s",) if one.startswith("^") else (r"%s\text{ %s}", "%s %s"):
            yield Pair(shape % (text, one), shape % (text, two))
    yield from filled("units of money and angles", case)


def brackets(case: Case) -> Iterator[Pair]:
    """Swap ordered entries, take them for a set, or give them another bracket."""
    if case.ordered is None:
        return
    left, entries, right = case.ordered
    one, two, *rest = entries
    after = "".join(f", {item}" for item in rest)
    slots: dict[str, Any] = {"one": one, "two": two, "after": after, "left": left, "right": right}
    yield from filled("brackets", case, **slots)
    if rest:
        return
    yield from filled("pairs", case, **slots)


def lists(case: Case) -> Iterator[Pair]:
    """Take a list for something else, or its entries for those of a matrix; edits.py drops some."""
    if case.items and not case.mentions("ratio"):
        one, two = case.items[:2]
        yield from filled("lists", case, all=", ".join(case.items), one=one, two=two)


def steps(case: Case) -> Iterator[Pair]:
    """Pair different floors and ceilings that agree at most points."""
    number = case.integer
    if number is not None and number > 0:
        k = number % 40 + 1
        yield from filled("steps", case, k=f"{k}", next=f"{k + 1}", after=f"{k + 2}")


def echoes(case: Case) -> Iterator[Pair]:
    """Give the problem as the answer, unless it holds the reference."""
    number = case.value is not None and re.escape(case.text)
    if case.problem and number and not re.search(rf"(?<![\d.]){number}(?!\d)", case.problem):
        last = re.split(r"(?<=[.?!])\s+", case.problem.strip())[-1]
        yield from case.answered(case.problem, last)


_SIZES = re.split(
    ", ",
    "hundred, thousand, million, billion, dozen, tenths, hundredths, squared, cubed, halves, "
    "plus 1, minus 1, times 2, divided by 2",
)
_OPPOSITES = {"yes": "No", "no": "Yes", "true": "False", "false": "True", "odd": "even",
              "even": "odd", "increasing": "decreasing", "decreasing": "increasing"}  # fmt: skip


def templated(
    name: str,
    applies: Callable[[Case], Any] = lambda case: case.is_expression,
    beside: Callable[[Case], list[str]] = others,
    *,
    is_text: bool = False,
) -> Family:
    """Make a family from the templates of this name, for references that `applies` accepts."""

    def family(case: Case) -> Iterator[Pair]:
        for other in beside(case) if applies(case) else ():
            yield from filled(name, case, is_text=is_text, o=other)

    return family


def _is_formula(case: Case) -> bool:
    return case.is_expression and (case.value is not None or len(case.text) > 1)


def _is_operand(case: Case) -> bool:
    return case.value is not None and abs(case.value) not in (0, 1) and not case.asks_rounding


def _are_words(case: Case) -> bool:
    text = re.fullmatch(r"[A-Za-z]{3,}(?: [A-Za-z]{3,})?", case.bare)
    return text is not None and not case.mentions("not")


def _joined(*families: Family) -> Family:
    return lambda case: itertools.chain.from_iterable(family(case) for family in families)


FAMILIES: dict[str, Family] = {
    "second answers": templated("second answers"),
    "hedges": templated(
        "hedges",
        lambda case: case.is_expression and not _ASKS_EXTREME.search(case.problem),
        lambda case: others(case)[-1:],
    ),
    "chains": templated("chains"),
    "parts": templated(
        "parts",
        lambda case: case.is_expression and not case.mentions("f(") and not case.asks_rounding,
    ),
    "operations": _joined(
        templated("operations", _is_operand),
        templated(
            "operations of integers",
            lambda case: _is_operand(case) and (case.integer or 0) > 2,
        ),
    ),
    "unknown functions": templated(
        "unknown functions",
        lambda case: (
            case.is_expression and not re.search(r"[fgh]\s*\(", f"{case.text} {case.problem}")
        ),
    ),
    "sign patterns": templated(
        "sign patterns", lambda case: case.is_expression and "n" not in case.text
    ),
    "conditions": templated(
        "conditions",
        lambda case: (
            case.is_expression and not re.search(r"[nk]|i$", re.sub(r"\\[A-Za-z]+", "", case.text))
        ),
    ),
    "sizes": templated(
        "sizes",
        lambda case: _is_operand(case) and not case.text.endswith("/1"),
        lambda case: [size for size in _SIZES if not case.mentions(size[:5].split()[0])],
    ),
    "choices": _joined(
        templated(
            "choices",
            lambda case: re.fullmatch("[A-D]", case.bare),
            lambda case: sorted({*"ABCD"} - {case.bare}),
        ),
        templated(
            "opposites",
            lambda case: case.bare.lower() in _OPPOSITES,
            lambda case: [_OPPOSITES[case.bare.lower()]],
        ),
    ),
    "words": templated("words", _are_words),
    # Not 0: 99 % of 0 is 0.
    "hidden": templated("hidden", lambda case: case.value and not case.asks_rounding),
    "published": _joined(
        templated("published", _is_formula), templated("empty boxes", _is_formula, is_text=True)
    ),
    "completions": templated("completions", lambda case: case.value is not None, is_text=True),
    **{
        family.__name__.replace("_", " "): family
        for family in (
            *(signs, large_integers, decimals, roundings, units),
            *(brackets, lists, steps, echoes),
        )
    },
}


def derived(family: Family, references: dict[str, str]) -> Iterator[Pair]:
    """Derive every pair of a family once, without answers that repeat the reference."""
    pairs = (pair for text, problem in references.items() for pair in family(Case(text, problem)))
    for pair in dict.fromkeys(pairs):
        if "".join(pair.answer.split()) != "".join(pair.reference.split()):
            yield pair
