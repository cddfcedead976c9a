"""Rules that compare numbers: units, degrees, percent, ratios, roundings.

Each `compare_*` is a rule of `reckon_verifier.equivalence.RULES`: it compares the trees of a
reference and an answer, and returns None to leave the pair to the next rule.
"""

import re
from decimal import Decimal
from fractions import Fraction

from reckon_verifier.evaluate import exact_value, real_value
from reckon_verifier.identity import same_expression
from reckon_verifier.rules import Comparer, Verdict
from reckon_verifier.tree import Node, free_symbols, nodes, number, pairs, symbol
from reckon_verifier.words import HEDGES, asked_words, is_unit, may_be_added, parse_unit


def compare_quantity(comparer: Comparer, reference: Node, answer: Node) -> Verdict | bool:
    """Compare quantities with units: `5 cm` equals `50 mm`.

    Known units are converted; an unknown unit, `7 pears`, must be the same on both sides. The
    answer may leave out the reference's unit, and may add a unit if `_may_add` allows it.
    """
    kinds, problem = {reference.kind, answer.kind}, comparer.problem
    values = [node.args[0] if node.kind == "unit" else node for node in (reference, answer)]
    expected, actual = _in_base(reference), _in_base(answer)
    if expected and actual:
        # Metres are never seconds.
        is_compatible = expected[1] == actual[1]
        values = [expected[0], actual[0]]
    elif kinds == {"unit"}:
        is_compatible = _singular(reference.name) == _singular(answer.name)
    elif kinds & {"degree", "percent"}:
        # `5 cm` is neither `5^\circ` nor `5 \%`.
        return False
    elif reference.kind == "unit":
        # Not symmetric: an answer may leave out any known unit of the reference.
        is_compatible = is_unit(reference.name) or _may_add(reference.name, problem)
    else:
        # Letters after a formula may be factors, no unit: `2x m`.
        is_clear = bool(problem) or not free_symbols(reference)
        is_compatible = is_clear and _may_add(answer.name, problem)
    return is_compatible and comparer.same(*values)


def _in_base(node: Node) -> tuple[Node, tuple[tuple[str, int], ...]] | None:
    """Return (value in base units, dimension), or None if `node` has no known unit.

    `5 km` -> (5 · 1000, (("length", 1),)).
    """
    unit = parse_unit(node.name) if node.kind == "unit" else None
    return unit and (Node("product", (node.args[0], number(unit.factor))), unit.dimension)


def _singular(unit: str) -> str:
    """Return `unit` with its words of four letters or more without a final s: cups -> cup."""
    return re.sub(r"(?<=\w{3})s\b", "", unit)


def _may_add(unit: str, problem: str) -> bool:
    """Return True if an answer may add this unit to the number of a reference without a unit.

    `may_be_added` decides for known units; other words must follow "how many" or "number of" in the
    problem, as in "How many pears" for `7 pears`.
    """
    known = parse_unit(unit)
    if known:
        return may_be_added(known, problem)
    words = unit.lower()
    phrases = asked_words(problem)
    # After "How many of each …" the unit may be any words of the problem.
    is_each = any(phrase.startswith("of each") for phrase in phrases)
    is_each &= f" {words} " in f" {re.sub(r'[^a-z]+', ' ', problem.lower())} "
    # "How many pears …" asks for `pears` or `pear`: the spaces compare whole words.
    is_asked = any(f"{_singular(phrase)} ".startswith(f"{_singular(words)} ") for phrase in phrases)
    nouns = [match[0] for phrase in phrases if (match := _NOUN.match(phrase))]
    is_asked |= any(f" {words} " in f" {noun} " for noun in nouns)
    # "How many times" and "how many more apples" ask for such words; "5 more than half" is not 5.
    hedges = HEDGES & {*words.split()[is_asked:]} - {"more", "less", "fewer"}
    return (is_asked or is_each) and not hedges and not {"than", "as"} & {*words.split()}


_NOUN = re.compile(
    r"(?:(?!(?:do|does|did|will|would|should|has|have|had|of|in|on|at|to|for|from|with|that|which"
    rf"|who|the|he|she|they|it|you|{'|'.join(sorted(HEDGES))})\b)[a-z'-]+(?: |$)){{0,4}}"
)


def compare_base(comparer: Comparer, reference: Node, answer: Node) -> bool | None:
    """Compare digits in a base, `1101_2`, which may be left out or added if the problem names it.

    A number without a base has the one that the problem asks for, or else ten.
    """
    if {reference.kind, answer.kind} - {"base", "number"}:
        return None
    asked = _asked_base(comparer.problem)
    sides = [
        (
            int(node.args[0].value or 0) if node.kind == "base" else asked or 10,
            node.name.lstrip("0"),
        )
        for node in (reference, answer)
    ]
    # No digits of their base, such as `12_2`, or no digits at all.
    if not all(digits.isdigit() and int(max(digits)) < base for base, digits in sides):
        return False
    return sides[0] == sides[1]


def _asked_base(problem: str) -> int:
    """Return 8 for "Express 1358 in base 8"; 0 for no base, several, or a question about digits."""
    bases = list(_BASE.finditer(problem))
    if not bases or _DIGITS.search(problem):
        return 0
    last, values = bases[-1], [int(_BASES.get(base[2].lower(), base[2])) for base in bases]
    # Of several, only the one that a number is converted to.
    return values[-1] if len({*values}) == 1 or last[1].lower() in ("to ", "into ") else 0


_BASES = pairs("two=2 three=3 four=4 five=5 six=6 seven=7 eight=8 nine=9 ten=10")
_BASE = re.compile(
    rf"(?i)((?:to|into)? ?)\bbase[-~ $]*(?:\\text{{)?(\d{{1,3}}|{'|'.join(_BASES)})(?![\w])"
)
_DIGITS = re.compile(r"(?i)how many|number of|digits?\b|what base|value of")


def compare_angle(comparer: Comparer, reference: Node, answer: Node) -> Verdict | bool:
    r"""Compare degrees: `60^\circ` equals `60`, `60^\circ`, and in radians `\frac{\pi}{3}`."""
    values = [node.args[0] if node.kind == "degree" else node for node in (reference, answer)]
    has_pi = [symbol("pi") in nodes(value) for value in values]
    if reference.kind != answer.kind:
        marked, bare = (0, 1) if reference.kind == "degree" else (1, 0)
        if has_pi[bare]:
            # The bare side is in radians; 60° as an expression is 60 · π / 180, in radians too.
            return same_expression(reference, answer)
        # An answer may leave out the sign; it may add it only if the problem asks for degrees, or
        # is not known.
        is_asked = not marked or not comparer.problem or _ANGLES.search(comparer.problem.lower())
        # Degrees written with π, `\pi^\circ`, equal no bare number.
        if has_pi[marked] or not is_asked:
            return False
    return comparer.same(*values)


# It names no radians, or converts them: "How many degrees are 2 radians?"
_ANGLES = re.compile(
    r"(?s)\A(?:(?!.*radian)|(?!.*(?:in|to|as|many|use) radian)(?=.*(?:to|in|many) degrees"
    r"|.*degree measure)).*?(?:\b(?:in|to|how many|number of) degrees|\bdegree measure|\bwhat angle"
    r"|\bmeasures? of (?:\w+ ){0,3}[$(\\m]*(?:angle|∠|arc)\b"
    r"|\b(?:find|what is|what's|determine|compute|calculate) (?:(?:the|its|each|all|of|in|size"
    r"|value|sum|smallest|largest|acute|obtuse|third|remaining|missing|interior|exterior|central|base"
    r"|vertex) )*[$(\\m]*(?:angle|∠)(?!'|s? bisector))"
)


def compare_percent(comparer: Comparer, reference: Node, answer: Node) -> Verdict:
    """Compare `10 %` as 0.1, and also as 10 if the problem asks for a percentage.

    If only the reference has the sign, the problem need only have the word percent, or the sign.
    """
    bare = [node.args[0] if node.kind == "percent" else node for node in (reference, answer)]
    is_alike = reference.kind == answer.kind
    question = _PERCENT if reference.kind == "percent" else _PERCENTAGE
    # "The same percentage every year", some sentences before the question, asks for none.
    sentences = re.split(r"(?<=[.?!])\s", comparer.problem.lower().strip())
    is_asked = question.search(" ".join(sentences if question is _PERCENT else sentences[-2:]))
    # Only the sign of a whole side may be left out, not a sign inside the reference: `1 + 5 \%`.
    if is_alike or (is_asked and not any(part.kind == "percent" for part in nodes(bare[0]))):
        decision = comparer.same(*bare)
        # A bare reference above 1 is a number of percent already: `1000 %` is not 10.
        is_number = reference.value is not None and abs(reference.value) > 1
        if decision.equal or is_alike or is_number:
            return decision
    return comparer.same(_hundredth(reference), _hundredth(answer))


_PERCENT = re.compile("percent|%")
_PERCENTAGE = re.compile(
    r"\b(?:what|which|how many|the|in) percent\b|\bas (?:a )?percent\b|\bpercentage"
)


def _hundredth(node: Node) -> Node:
    """Return a percentage as a number, `10 %` as 0.10; any other node as it is."""
    if node.kind != "percent":
        return node
    inside = node.args[0]
    # No literal: `x \%`, `33\frac{1}{3} \%`. Digits made from the value would count
    # as a decimal that its author rounded.
    if inside.value is None or not inside.name:
        return Node("quotient", (inside, number(100)))
    # The literal keeps its digits, since a rounding is compared by them: 12.5 % is 0.125.
    return number(inside.value / 100, f"{Decimal(inside.name).scaleb(-2):f}")


def compare_ratio(comparer: Comparer, reference: Node, answer: Node) -> Verdict | bool:
    """Compare ratios: 1:2 is 3:6 and 1/2; zeros must be in the same places."""
    sides = (reference, answer)
    expected, actual = (node.args if node.kind == "ratio" else (node, number(1)) for node in sides)
    # `4:30` and `2:15` may be two times of day; `3:05` is no ratio.
    texts = [":".join(term.name for term in x.args) for x in sides if x.kind == "ratio"]
    are_times = all(map(_TIME.fullmatch, texts)) and not RATIO.search(comparer.problem)
    if are_times or re.search(r":0\d", " ".join(texts)):
        return False
    # Zeros are in the same places; 0:0 equals nothing.
    zeros, others = ([exact_value(term) == 0 for term in terms] for terms in (expected, actual))
    if zeros != others or all(zeros):
        return False
    # Both are divided by their first term that is not 0: 2:4 becomes 1:2.
    first = zeros.index(False)
    one, two = ([Node("quotient", (term, x[first])) for term in x] for x in (expected, actual))
    return comparer.in_order(one, two, "ratio")


RATIO = re.compile(r"\b(?:ratios?|odds|proportions?)\b", re.IGNORECASE)
"""Words of a problem that asks for a ratio."""
_TIME = re.compile(r"\d\d?:[0-5]\d")


def compare_scalar(comparer: Comparer, reference: Node, answer: Node) -> Verdict:
    r"""Compare as expressions; if these differ, one side may round the other: `3.142` and `\pi`."""
    decision = same_expression(reference, answer)
    is_final = decision.equal or not _is_rounding(reference, answer, comparer.problem)
    return decision if is_final else Verdict(True, "rounding")


MIN_ANSWER_DIGITS = 4
"""An answer with this many significant digits may round a reference without a finite decimal.

0.3333 is right for 1/3; 0.333 is not.
"""
MIN_REFERENCE_DIGITS = 4
"""A reference with a decimal point and this many significant digits may be a rounding."""


def _literal(node: Node) -> Decimal | None:
    """Return a number as it is written, such as -2.50 or 3.1 · 10^5; None for any other node."""
    match node:
        case Node("product", (Node("number", name=name), Node("power", (Node(value=base), power)))):
            scale = power.value
            # `3e5 · 10^2` has an exponent already, and a computed number has no literal ('').
            is_plain = name and "e" not in name.lower() and base == 10
            if is_plain and scale is not None and scale.denominator == 1:
                return Decimal(f"{name}e{scale}")
        case Node("number", name=name) if name:
            # Decimal keeps trailing zeros: 2.50 has three digits. A computed number has no literal.
            return Decimal(name)
    return None


def _is_rounding(reference: Node, answer: Node, problem: str) -> bool:
    """Return True if one side is a long decimal that rounds the other, exact side: 3.142 and π.

    The exact side must have no finite decimal.
    """
    # With the problem's text at hand, a reference needs one digit fewer, three: the bool is 1.
    fewest = MIN_REFERENCE_DIGITS - bool(problem)
    for side, exact, digits in (
        (reference, answer, fewest),
        (answer, reference, MIN_ANSWER_DIGITS),
    ):
        literal, rounding, value = _literal(side), real_value(side), real_value(exact)
        if literal is None or rounding is None or value is None or rounding.denominator == 1:
            continue
        _, written, exponent = literal.as_tuple()
        # Within half a unit of its last place; for 2.50 that unit is 1/100.
        is_near = abs(rounding - value) <= Fraction(10) ** int(exponent) / 2
        # 1/3 and π have no finite decimal; 3.142 does not round the exact 3.1416.
        if is_near and len(written) >= digits and not _is_finite(exact):
            return True
    return False


def _is_finite(node: Node) -> bool:
    """Return True if the value is an integer or a finite decimal: 3/8, but not 1/3 or π."""
    value = exact_value(node)
    # Its denominator has no prime factors but 2 and 5, and so divides a power of ten.
    return value is not None and pow(10, value.denominator.bit_length(), value.denominator) == 0
