r"""Other readings of a reference and an answer that differ as they are written.

Each rule rewrites the pair, and the pair is then compared like any other. `readings` need no
context: an explanation that only one of the two has, an ordinal, labels, a matrix that is a layout.
`readings_of_problem` use what the problem's text settles: the letters of a choice, a rounding,
a unit or degrees, what is asked for, whether order counts.

A rule may leave out words, never a number or a condition: what it leaves out must be a quantifier
over a whole set of numbers, a label, or text that the problem has. Each has wrong look-alikes in
tests/golden/verifier/readings.jsonl.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from lib.verifier.evaluate import real_value
from lib.verifier.normalize import normalize
from lib.verifier.parse import parse
from lib.verifier.scalars import decimal_literal
from lib.verifier.tree import TooHard, Unparsable
from lib.verifier.vocabulary import UNITS, compound_quantity, has_words, number_word

_MAX_CHARS = 600
"""Longer texts have no other reading: rules search, and some take quadratic time."""

Reading = tuple[str, str, str]
"""Name of the rule, reference, answer."""

_TEXT = re.compile(r"\\(?:text|mathrm|mbox|textbf|textit|textrm)\s*\{([^{}]*)\}")
_NUMBERS = r"(?:real|complex|positive|negative|natural|rational|integral|whole|non-?\w+)\s+"
_SET = r"\\mathbb\s*\{?\s*[A-Z]\s*\}?(?:\s*[_^]\s*(?:\{[^{}1-9]*\}|[^\s{}1-9]))*(?![_^])"
_MEMBER = rf"\\?[A-Za-z]+(?:\s*,\s*[A-Za-z])*\s*(?:\\in\s*(?:{_SET}|[RZNQC]\b)(?![\w\\]))"
_QUALIFIER = re.compile(
    rf"[,;]?\s*\(?\s*(?:"
    rf"(?:for\s+|\\forall\s*)(?:(?:all|any|every|each|some)\s+)?(?:{_NUMBERS})*"
    rf"(?:(?:integers?|numbers?|reals?|values\s+of)\s+)?(?:{_MEMBER}|[a-z](?![\w\\^_(]))"
    rf"|(?:where|with|when)\s+{_MEMBER}"
    rf"|[,;]\s*{_MEMBER}"
    rf"|(?:where|with|for)\s+[A-Za-z]\s+(?:is|being)\s+(?:an?\s+|any\s+)?(?:arbitrary\s+)?"
    rf"(?:{_NUMBERS})*(?:integer|number|constant)s?"
    rf")\s*\)?(?=\s*(?:$|[,;]|and\b|or\b))"
)
_DEFINITION = re.compile(r",?\s*where\s.*$", re.DOTALL)
_ROUNDED_TOO = re.compile(
    r"[,;]?\s*\(?\s*(?:or\s+)?(?:approximately|approx\.?|about|roughly)\s*[-\d.,]+\s*\)?\s*$"
)
_ADVERB = re.compile(
    r"^\s*(?:only|exactly|approximately|approx\.?|about|roughly|(?:the )?(?:final )?answer is"
    r"|the (?:line|curve|equation|point|interval)(?=.*[=(\[]))\s+(?=\S)",
    re.I,
)
_ORDINAL = re.compile(
    r"(?<=\d)\s*(?:\^\s*\{?)?\s*(?:\\(?:text|mathrm)\s*\{)?(?:st|nd|rd|th)\b(?:\s*\})*"
)
_LABEL = re.compile(r"(?<![A-Za-z\\])(?!and\b|or\b)[A-Za-z][a-z]{2,}(?:\s+[a-z]+)?\s*[:=]\s*(?!=)")
_LAYOUT = re.compile(r"\\(?:begin|end)\s*\{[pb]?matrix\}|\\\\")
_ENUMERATOR = re.compile(r"\((?:[ivx]+|[a-h]|\d)\)")
_DECISION = re.compile(r"^(yes|no|true|false)\s*[,.;:](?!.*\b(?:but|or)\b).*$", re.I)
_LETTERS = re.compile(r"^\(?[A-H](?:(?:[\s,;()]|\band\b)*[A-H])+\)?$")
_SYSTEM = re.compile(r"\\begin\s*\{(?:cases|aligned)\}([^&]*?)\\end\s*\{(?:cases|aligned)\}")
_POINT = re.compile(r"^[A-Z]\s*(?=\([^()]*,)")
_ALL = re.compile(rf"^all\s+(?:{_NUMBERS})*(?:integers?|numbers?|values of)?\s*(?=[a-z]\W)")
_REALS = re.compile(r"^(?:the )?(?:set of )?(?:all|any|every) (?:real numbers?|reals)(?: x)?$")
_INFINITE = re.compile(r"^(?:infinitely many|infinite)(?: solutions?| numbers?)?$", re.I)
_NO_VALUE = re.compile(r"^(?:DNE|(?:it )?does not exist|undefined)$", re.I)
_NOTHING = re.compile(
    r"^(?:none|(?:there are )?no (?:real )?solutions?|(?:the )?empty(?: ?set)?)$", re.I
)
_GROUPS = re.compile(r"(?<=\d),(?=\d{3})")
_LOGARITHM = re.compile(r"\\log(?![a-z]|\s*_|10)")
_COMBINATIONS = re.compile(r"\bC_\{?(\d+)\}?\^\{?(\d+)\}?")
_NUMBERED = re.compile(r"^\(\d\)(?:[,\s]*\(\d\))+$")
_CONDITION = re.compile(
    r"(?<=[^\s=])\s*\(\s*[a-z]\s*(?:[<>]|\\(?:ge|le|in|ne)(?:q|qslant)?\b)[^()]*\)$"
)
_BOTH, _REFERENCE, _ANSWER = (True, True), (True, False), (False, True)
_SPELLINGS: tuple[tuple[str, tuple[bool, bool], re.Pattern[str], Any], ...] = (
    ("decimal comma", _ANSWER, re.compile(r"^(-?\d+),(\d+)$"), r"\1.\2"),
    ("separators", _ANSWER, _GROUPS, ", "),
    ("separators", _REFERENCE, _GROUPS, ", "),
    ("common logarithm", _BOTH, _LOGARITHM, r"\\lg "),
    ("layout", _ANSWER, _LAYOUT, " "),
    ("parts", _ANSWER, re.compile(r"^\s*\((?:i|a|1)\).*$"), lambda match: _parts(match[0])),
    ("system", _BOTH, _SYSTEM, lambda match: match[1].replace(r"\\", ",")),
    ("point", _BOTH, _POINT, ""),
    ("all", _BOTH, _ALL, ""),
    ("reals", _BOTH, _REALS, r"\\mathbb{R}"),
    ("infinitely many", _BOTH, _INFINITE, r"\\infty"),
    ("no value", _BOTH, _NO_VALUE, "none exists"),
    ("empty set", _BOTH, _NOTHING, r"\\emptyset"),
    ("number word", _BOTH, re.compile("^[A-Za-z]+$"), lambda match: _digits(match[0])),
    ("combinations", _BOTH, _COMBINATIONS, r"\\binom{\1}{\2}"),
    ("numbered", _BOTH, _NUMBERED, lambda match: ",".join(re.findall(r"\d+", match[0]))),
    ("choices", _BOTH, _LETTERS, lambda match: re.sub("[^A-H]", "", match[0])),
    ("compound quantity", _BOTH, re.compile("^.+$"), lambda match: compound_quantity(match[0])),
    # The reference tells where it holds, which an answer may leave unsaid.
    ("condition", _REFERENCE, _CONDITION, ""),
    ("decision", _ANSWER, _DECISION, r"\1"),
    ("decision", _REFERENCE, _DECISION, r"\1"),
)
"""Rule, the sides that it rewrites, what it rewrites and how."""
_HINT = re.compile(
    r"(?<![\\A-Za-z])[A-Za-z]{2}|\\(?:text|mathrm|in|ge|le|ne|begin|log)\b|[A-HP]|\([\da-z]\)|[<>]"
    r"|\d,\d"
)
"""What any rule needs; most pairs have none of it, and no other reading."""
_PARAMETER = re.compile(r"(?<![A-Za-z\\])[kmnjl](?![A-Za-z])")


def readings(reference: str, answer: str) -> Iterator[Reading]:
    """Pairs that say the same as two normalized texts that were not equal as they are."""
    if max(len(reference), len(answer)) > _MAX_CHARS:
        return
    if not (_HINT.search(reference) or _HINT.search(answer)):
        return
    plain = _without_words(reference), _without_words(answer)
    if plain != (reference, answer):
        yield "explanation", *plain
    plain = normalize(_TEXT.sub(r" \1 ", plain[0])), normalize(_TEXT.sub(r" \1 ", plain[1]))
    labels = _LABEL.findall(plain[0]), _LABEL.findall(plain[1])
    if bool(labels[0]) != bool(labels[1]) and len(set(labels[0] + labels[1])) > 1:
        values = _LABEL.sub("", plain[0]), _LABEL.sub("", plain[1])
        if not any(map(has_words, values)):
            yield "labels", *values
    for step, sides, pattern, new in _SPELLINGS:
        pair = [
            pattern.sub(new, text) if side else text
            for text, side in zip(plain, sides, strict=True)
        ]
        if pair != [*plain]:
            yield step, normalize(pair[0]), normalize(pair[1])


def _parts(text: str) -> str:
    """`(i) 2 (ii) 1` as a tuple."""
    return f"({','.join(part.strip(' ,;') for part in _ENUMERATOR.split(text)[1:])})"


def _digits(word: str) -> str:
    number = number_word(word.lower())
    return word if number is None else str(number)


def _without_words(text: str) -> str:
    """`text` without quantifiers over whole sets of numbers, adverbs and the ends of ordinals."""
    plain = _TEXT.sub(r" \1 ", text)
    for pattern in (_DEFINITION, _ROUNDED_TOO) if _has_formula(plain) else ():
        plain = pattern.sub("", plain)
    for pattern in (_QUALIFIER, _ADVERB):
        plain = pattern.sub("", plain) or plain
    plain = _ORDINAL.sub("", plain)
    changed = "".join(plain.split()) != "".join(_TEXT.sub(r" \1 ", text).split())
    return normalize(plain) if changed else text


def _has_formula(text: str) -> bool:
    return bool(re.match(r"[^a-z]*(?:\d|\\[a-z]|[a-z]\b)", text))


def _renamed_parameter(reference: str, answer: str, problem: str) -> Iterator[Reading]:
    r"""`k\pi` and `n\pi`: the only letter of each side is an integer that it brings along."""
    if "\\pi" not in reference or "\\pi" not in answer:
        return
    reference, answer = _without_words(reference), _without_words(answer)
    letters = {*_PARAMETER.findall(reference)}, {*_PARAMETER.findall(answer)}
    if letters[0] == letters[1] or not len(letters[0]) == len(letters[1]) == 1:
        return
    known = set(_PARAMETER.findall(problem))
    if not (letters[0] | letters[1]) & known:
        yield "parameter", reference, _PARAMETER.sub(letters[0].pop(), answer)


_OPTION = re.compile(
    r"(?:^|[\s$~{,;(])\\?(?:text(?:bf|rm)?|mathrm|mathbf)?\s*\{?\s*(?:\(([A-H])\)|([A-H])[.)])"
    r"\s*(?:\\?\}|[~:]|\\ )*"
)
_END_OF_OPTION = re.compile(r"\\(?:qquad|quad|hspace|newline|\\)|\n|\s{3,}|\\textbf|\$\s*$")
_LETTER = re.compile(r"\(?([A-H])\)?\.?")
_PLACES = {
    "integer": 0, "whole": 0, "unit": 0, "one": 0, "tenth": 1, "hundredth": 2, "thousandth": 3,
    "cent": 2, "penny": 2, "ten": -1, "hundred": -2, "thousand": -3,
}  # fmt: skip
_NEAREST = re.compile(r"nearest\s+(\w+?)s?\b")
_DECIMALS = re.compile(r"(\w+)\s+decimal\s+(?:place|digit)", re.I)
_APPROXIMATE = re.compile(r"approximat|\babout\b|estimate|closest", re.I)
_COUNTS = {"one": 1, "two": 2, "three": 3, "four": 4, "1": 1, "2": 2, "3": 3, "4": 4}
_QUESTION_UNIT = re.compile(
    r"(?i:\bin|how many|number of)\s+(?:\\text\{\s*)?(square |cubic )?([A-Za-z]+)"
)
_UNORDERED = re.compile(r"\b(?:all|roots|zeros|solutions|values|elements|which of)\b", re.I)
_ORDERED = re.compile(r"order|pair|triple|tuple|point|coordinate|vector|interval|\(\s*x", re.I)
_SORTED = re.compile(r"\border\b|smallest|ascending|descending|increasing|largest", re.I)
_CHAIN = re.compile(r"[^<>=]+(?:(<)[^<>=]+){2,}|[^<>=]+(?:(>)[^<>=]+){2,}")
_PROPER = re.compile(r"\b[A-Z][a-z]{2,}\b")


def readings_of_problem(reference: str, answer: str, problem: str) -> Iterator[Reading]:
    """Pairs that the problem makes equal, of two normalized texts that are not by themselves."""
    if max(len(reference), len(answer)) > _MAX_CHARS:
        return
    yield from _renamed_parameter(reference, answer, problem)
    if not problem:
        return
    yield from _options(reference, answer, problem)
    yield from _quantity(reference, answer, problem)
    yield from _unit_in_question(reference, answer, problem)
    yield from _rounding(reference, answer, problem)
    yield from _order(reference, answer, problem)
    if re.search(r"equation|curve|function|locus|express", problem, re.I) and "=" in reference:
        names, known = ({*re.sub(r"\\[a-z]+", "", text)} & {*"xyz"} for text in (reference, answer))
        missing = names - known
        if len(names) == 2 and len(missing) == 1 and "=" not in answer:
            yield "equation", reference, f"{missing.pop()} = {answer}"
    words = set(_PROPER.findall(problem)) & set(_PROPER.findall(reference))
    if len(words) == 1 and reference.count(" ") and answer in words:
        yield "name", answer, answer


def _options(reference: str, answer: str, problem: str) -> Iterator[Reading]:
    """The letter of a choice for its text or value, where no other option has that."""
    letters = _LETTER.fullmatch(reference), _LETTER.fullmatch(answer)
    if bool(letters[0]) == bool(letters[1]):
        return
    options = _choices(problem)
    letter, text = (letters[0] or letters[1]), answer if letters[0] else reference
    if letter and letter[1] in options:
        option = options.pop(letter[1])
        if option not in options.values():
            yield ("choice", option, text) if letters[0] else ("choice", text, option)


def _choices(problem: str) -> dict[str, str]:
    """The options that a problem lists by letters from A on; empty where it lists none."""
    marks = list(_OPTION.finditer(problem))
    options: dict[str, str] = {}
    for number, match in enumerate(marks):
        letter = match[1] or match[2]
        if letter != chr(ord("A") + len(options)):
            continue
        end = marks[number + 1].start() if number + 1 < len(marks) else len(problem)
        text = problem[match.end() : end].strip()
        cut = _END_OF_OPTION.search(text)
        options[letter] = normalize(text[: cut.start()] if cut and cut.start() else text)
    return options if len(options) > 1 else {}


def _quantity(reference: str, answer: str, problem: str) -> Iterator[Reading]:
    """`x+y=5` for 5, where the problem asks for x+y and does not state what it equals."""
    for text, other, is_answer in ((answer, reference, True), (reference, answer, False)):
        quantity, equals, value = text.partition("=")
        if not equals or "=" in value or "=" in other or len(quantity.strip()) < 2:
            continue
        place = _squeezed(problem).find(_squeezed(quantity))
        after = _squeezed(problem)[place + len(_squeezed(quantity)) :].lstrip("$})")
        if place >= 0 and not after.startswith(("=", "<", ">", "+", "-", "\\le", "\\ge", "^")):
            yield ("quantity", reference, value) if is_answer else ("quantity", value, answer)


def _squeezed(text: str) -> str:
    return re.sub(r"\\left|\\right|\\[,;!: ]|[\s$]", "", text)


def _unit_in_question(reference: str, answer: str, problem: str) -> Iterator[Reading]:
    """A number without its unit, in the unit that the problem asks for; degrees for radians."""
    if "\\pi" in answer and "\\pi" not in reference and re.search(r"degree|\^\\circ|°", problem):
        yield "degrees", rf"{reference}^\circ", answer
    if re.fullmatch(r"[-\d.,/]+|\\frac\{\d+\}\{\d+\}", reference) and re.search("[A-Za-z]", answer):
        units = {power + unit for power, unit in _QUESTION_UNIT.findall(problem) if unit in UNITS}
        if len(units) == 1:
            yield "unit", rf"{reference} \text{{ {units.pop()}}}", answer


def _rounding(reference: str, answer: str, problem: str) -> Iterator[Reading]:
    """The rounding that the problem asks for, or that the reference is, of an exact answer."""
    try:
        trees = parse(reference), parse(answer)
    except (Unparsable, TooHard):
        return
    scale = Fraction(1, 100) if trees[0].kind == "percent" else Fraction(1)
    literal, answered = (
        decimal_literal(tree.args[0] if tree.kind in ("percent", "unit") else tree)
        for tree in trees
    )
    of_reference = of_answer = None
    if (places := _places(problem)) is not None:
        of_answer = Fraction(10) ** -places
        of_reference = of_answer if literal else None
    elif _APPROXIMATE.search(problem) and answered and answered.digits >= 3:
        of_reference = answered.last_place
    elif literal and literal.digits >= 3 and literal.last_place <= Fraction(1, 100):
        # Three digits that a fraction rounds to are no coincidence; the reference is its rounding.
        of_answer = literal.last_place
    else:
        return
    expected, value = map(real_value, trees)
    is_exact = not re.search(r"\d\.\d", answer)
    if value is None or expected is None:
        return
    if (of_reference and _round(expected, of_reference * scale) == value) or (
        is_exact and of_answer and _round(value, of_answer * scale) == expected
    ):
        yield "rounding", reference, reference


def _places(problem: str) -> int | None:
    """Decimal places that the problem asks for, None where it asks for none."""
    nearest = [_PLACES[word] for word in _NEAREST.findall(problem) if word in _PLACES]
    counted = [_COUNTS[word] for word in _DECIMALS.findall(problem) if word in _COUNTS]
    return next(iter([*counted, *nearest]), None)


def _round(value: Fraction, step: Fraction) -> Fraction:
    """The multiple of `step` that is nearest, halves away from zero."""
    scaled = abs(value) / step + Fraction(1, 2)
    return (scaled.numerator // scaled.denominator) * step * (1 if value >= 0 else -1)


def _order(reference: str, answer: str, problem: str) -> Iterator[Reading]:
    """An order as a chain or as a list; a tuple of solutions as the set that is asked for."""
    chains = _CHAIN.fullmatch(reference), _CHAIN.fullmatch(answer)
    if bool(chains[0]) != bool(chains[1]) and "," in reference + answer and _SORTED.search(problem):
        expected, actual = (_inside(re.sub("[<>]", ",", text)) for text in (reference, answer))
        yield "order", f"({expected})", f"({actual})"
    expected, actual = _inside(reference), _inside(answer)
    is_set = _UNORDERED.search(problem) and not _ORDERED.search(problem)
    if is_set and (expected, actual) != (reference, answer) and "," in expected:
        yield "unordered", rf"\{{{expected}\}}", rf"\{{{actual}\}}"


def _inside(text: str) -> str:
    """What is between the parentheses around `text`, if they are there."""
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text
