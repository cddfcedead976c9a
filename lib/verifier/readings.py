r"""The table of rules, and the readings among them: the same pair written in another way.

Each reading rewrites a reference and an answer that differ as they are written, and the pair is
then compared like any other: it decides nothing by itself. What it leaves out is a frame ("The
answer is"), a quantifier over a whole set of numbers, a label, a remark that is checked, or words
that the problem has; it is never a number, a condition of the answer, nor a word of `HEDGES`, which
makes another statement of the number beside it. Each rule has what it earns, its right case and a
wrong look-alike beside it, and more in tests/golden/verifier/readings.jsonl.
"""

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

from lib.verifier.evaluate import exact_value, real_value
from lib.verifier.normalize import normalize
from lib.verifier.parse import parse
from lib.verifier.scalars import decimal_literal, is_finite_decimal
from lib.verifier.tree import TooHard, Unparsable, remembered
from lib.verifier.vocabulary import FRAME, HEDGES, has_words, hedges, in_digits, names

_MAX_CHARS = 600
"""Longer texts have no other reading: rules search, and some take quadratic time."""

Pair = tuple[str, str]
Reading = tuple[str, str, str]
"""Name of the rule, reference, answer."""


Rewriting = Callable[[str, str, str], Iterator[Pair]]
"""Reference, answer and problem to the pairs that say the same; none where it does not apply."""


class Rule(NamedTuple):
    """A step of the comparison or a rewriting of the pair: a row of the table of rules.

    Attributes:
        name: what `decided_by` says.
        rows: right answers of the labelled sets that are refused without a rewriting, or that a
            step decides; `python -m tests.bench.verifier rules --write` measures and writes it.
        right: a reference and an answer that it makes equal, and the problem where it needs one.
        wrong: a look-alike that stays unequal.
    """

    name: str
    rows: int
    description: str
    right: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    pairs: Rewriting = lambda *_: iter(())


_TEXT = re.compile(r"\\(?:text|mathrm|mbox|textbf|textit|textrm)\s*\{([^{}]*)\}")
_NUMBERS = r"(?:real|complex|positive|negative|natural|rational|integral|whole|non-?\w+)\s+"
_NOUN = r"(?:integers?|numbers?|reals?|values\s+of)\s+"
_SET = r"\\mathbb\s*\{?\s*[A-Z]\s*\}?(?:\s*[_^]\s*(?:\{[^{}1-9]*\}|[^\s{}1-9]))*(?![_^])"
_MEMBER = rf"\\?[A-Za-z]+(?:\s*,\s*[A-Za-z])*\s*(?:\\in\s*(?:{_SET}|[RZNQC]\b)(?![\w\\]))"
_QUALIFIER = re.compile(
    rf"[,;]?\s*\(?\s*(?:"
    rf"(?:for\s+|\\forall\s*)(?:(?:all|any|every|each|some)\s+)?(?:(?:{_NUMBERS})*{_NOUN})?"
    rf"(?:{_MEMBER}|[a-z](?![\w\\^_(]))"
    rf"|(?:where|with|when)\s+{_MEMBER}"
    rf"|[,;]\s*{_MEMBER}"
    rf"|(?:where|with|for)\s+[A-Za-z]\s+(?:is|being)\s+(?:an?\s+|any\s+)?(?:arbitrary\s+)?"
    rf"(?:{_NUMBERS})*(?:integer|number|constant)s?"
    rf")\s*\)?(?=\s*(?:$|[,;]|and\b|or\b))"
)
_ORDINAL = re.compile(
    r"(?<=\d)\s*(?:\^\s*\{?)?\s*(?:\\(?:text|mathrm)\s*\{)?(?:st|nd|rd|th)\b(?:\s*\})*"
)
_SUBJECT = re.compile(
    r"^((?:[A-Za-z][A-Za-z']*\s+)+)(?:is|are|was|were|equals|equal|=)(?:\s+equal\s+to|\s*:)?\s*(?=\S)"
    r"|^((?:[A-Za-z']+\s+)*[A-Za-z']+)\s*:\s*(?=[^:]+$)"
)
_IT_IS = re.compile(r"^(?:it|this|the [a-z]+) (?:is|are) ", re.I)
_THERE_ARE = re.compile(r"^there (?:is|are|were) (?:exactly )?(?=\d)", re.I)
_LAST_WORD = re.compile(r"(?<=[a-z]{3})\s+([a-z]+)$")
_PREDICATE = re.compile(r"\s+(?:is|are)\s+((?:[A-Za-z']+\s+)*[A-Za-z']+)$")
_NOUNS = re.compile(
    r"(?<=[\d)}%])\s*((?:\s(?!(?:and|or)\b)[A-Za-z'-]{2,})+)(?=\s*(?:$|[,;)]|(?:and|or)\b))"
)
_ADVERB = re.compile(r"^(?:only|exactly|the (?:line|curve|equation|point|interval)(?=.*[=(\[]))\s+")
_END_MARK = re.compile(r"\s*\\(?:checkmark|blacksquare|square|Box|qedsymbol)\s*$")
_BECAUSE = re.compile(r"(?<=\S)[,;]?\s*\(?\s*(?:since|because)\s+(.+?)\)?$")
_EQUIVALENTLY = re.compile(
    r"(?<=\S)[,;]?\s*\(?\s*(?:or\s+)?"
    r"(?:equivalently|i\.e\.|that is|which (?:is|equals)|in other words)"
    r"[,:\s]+(?:to\s+)?(.+?)\s*\)?$"
)
_ABOUT = re.compile(
    r"(?<=\S)[,;]?\s*\(?\s*(?:or\s+|which is\s+)?(?:approximately|approx\.?|about|roughly)\s*"
    r"(-?[\d.]+)\s*(?:[a-z]+\s*)?\)?\s*$"
)
_LABEL = re.compile(
    r"(?<![A-Za-z\\])(?!and\b|or\b)[A-Za-z][a-z]{2,}(?:\s+(?:[a-z]+|\d))?\s*[:=]\s*(?!=)"
)
_DECISION = re.compile(
    r"(yes|no|true|false)\s*[,.;:]\s*(?=(?:because|since|as|it|this|that|they|there|these|such|we|he"
    r"|she|you|the|an?|all|every|for)\b)((?:(?!\b(?:yes|true|or)\b)[^\d<>=])+)",
    re.IGNORECASE,
)
"""A decision and a sentence, which is no second answer."""
_LETTER = re.compile(r"\(?([A-H])\)?\.?")
_MARKED = re.compile(r"^\(?([A-H])[).:]\s*(?=\S)")
_GROUPED = re.compile(r"-?\d{1,3}(?:(?:\.\d{3}){2,}|(?:\.\d{3})+,\d+|(?:'\d{3})+)")
_DECIMAL_COMMA = re.compile(r"^(-?\d+),(\d+)$")
_SYSTEM = re.compile(r"\\begin\s*\{(?:cases|aligned)\}([^&]*?)\\end\s*\{(?:cases|aligned)\}")
_LAYOUT = re.compile(r"\\(?:begin|end)\s*\{matrix\}|\\\\")
_POINT = re.compile(r"^[A-Z]\s*(?=\([^()]*,)")
_NUMBERS_OF = {
    "real": "R", "integer": "Z", "positive integer": "Z^+", "rational": "Q", "natural": "N",
}  # fmt: skip
_ALL_NUMBERS = re.compile(
    rf"^(?:the )?(?:set of )?(?:all|any|every) ({'|'.join(_NUMBERS_OF)})(?: numbers?|s)?(?: x)?$",
    re.I,
)
_HALF_LINE = re.compile(
    r"\\mathbb\s*\{?R\}?\s*(?:[_^]\s*\{?\s*([+-])\s*\}?|_\s*\{?\s*([<>])\s*0\s*\}?)$"
)
_TURNED = re.compile(r"([\[\]])([^\[\]()]+,[^\[\]()]+)([\[\]])")
_INFINITE = re.compile(r"^(?:infinitely many|infinite)(?: solutions?| numbers?)?$", re.I)
_NOTHING = re.compile(
    r"^(?:none|(?:there (?:is|are) )?no(?: such| real| integer)*"
    r"(?: (?:solution|integer|number|value)s?)(?: exists?)?|(?:the )?empty(?: ?set)?)$",
    re.I,
)


def _without_frame(text: str, known: frozenset[str] = frozenset()) -> str:
    """`text` without the words around its mathematics, where all of them are known ones."""
    allowed = (FRAME | known) - HEDGES
    if not re.search(r"[\d\\=<>]", text):
        # Of words there is no other number to mean: `The ball is red`, `It is Tuesday`.
        text = _IT_IS.sub(lambda match: match[0] if hedges(match[0]) else "", text)

    def spoken(match: re.Match[str]) -> str:
        words = next(filter(None, match.groups())).split()
        is_free = all(len(word) == 1 or word.isupper() or word.lower() in allowed for word in words)
        return "" if is_free and any(len(word) > 2 for word in words) else match[0]

    for pattern in (_SUBJECT, _PREDICATE, _NOUNS):
        text = pattern.sub(spoken, text)
    return _ADVERB.sub("", _THERE_ARE.sub("", text))


def _without_remark(text: str) -> str:
    """`text` without a reason; another form of the answer is chained to it, to be checked."""
    text = _END_MARK.sub("", text) or text
    text = _BECAUSE.sub(lambda match: match[0] if hedges(match[1]) else "", text)
    return _ABOUT.sub(r" \\approx \1", _EQUIVALENTLY.sub(r" = \1", text))


def _decided(text: str) -> str:
    """`Yes, because …` as Yes; not where the rest takes it back."""
    match = _DECISION.fullmatch(text)
    denials = names("not cannot never no none impossible")
    free = denials if match and match[1].lower() in ("no", "false") else frozenset()
    return match[1] if match and hedges(match[2]) <= free else text


def _rewritten(pattern: re.Pattern[str], new: Any, *, reference: bool = True) -> Rewriting:
    """A rule that rewrites the answer, and the reference too unless told not to."""

    def rewrite(one: str, two: str, problem: str) -> Iterator[Pair]:
        yield pattern.sub(new, one) if reference else one, pattern.sub(new, two)

    return rewrite


_DOMAIN = re.compile(
    r"\\mathbb\s*\{?\s*([A-Z])|\\in\s*([A-Z])\b|\b(integer|real|rational|natural|complex)"
)
_PART = re.compile(r"non|positive|negative|[-+<>*]")


def _domains(text: str) -> set[tuple[str, ...]]:
    """What the quantifiers of `text` are over: integers, positive reals."""
    domains = set()
    for quantifier in (match[0] for match in _QUALIFIER.finditer(text)):
        if match := _DOMAIN.search(quantifier):
            letter = next(filter(None, match.groups())).replace("integer", "Z")[0].upper()
            signs = _PART.findall(quantifier.replace("positive", "+").replace("negative", "-"))
            domains.add(("Z", "+") if letter == "N" else (letter, *signs))
    return domains


def _each(change: Callable[[str], str]) -> Rewriting:
    def rewrite(reference: str, answer: str, problem: str) -> Iterator[Pair]:
        yield change(reference), change(answer)

    return rewrite


def _in_parentheses(text: str) -> str:
    """Open ends as parentheses, where a bracket is turned outward."""
    return _TURNED.sub(
        lambda match: (
            f"{'[' if match[1] == '[' else '('}{match[2]}{']' if match[3] == ']' else ')'}"
        ),
        text,
    )


def _words_of_problem(reference: str, answer: str, problem: str) -> Iterator[Pair]:
    """Nouns that the problem has, left out on one side: on both they would have to agree."""
    known = {word.lower() for word in re.findall("[A-Za-z]{2,}", problem)}
    yield reference, _without_nouns(answer, frozenset(known))
    yield _without_nouns(reference, frozenset(known)), answer


def _without_nouns(text: str, known: frozenset[str]) -> str:
    last = _LAST_WORD.search(text)
    text = text[: last.start()] if last and last[1] in known - HEDGES else text
    return _without_frame(text, known)


def _labels(reference: str, answer: str, problem: str) -> Iterator[Pair]:
    labels = _LABEL.findall(reference), _LABEL.findall(answer)
    if bool(labels[0]) != bool(labels[1]) and len(set(labels[0] + labels[1])) > 1:
        values = _LABEL.sub("", reference), _LABEL.sub("", answer)
        if not any(map(has_words, values)):
            yield values


def _grouped(text: str) -> str:
    return re.sub("[.']", "", text).replace(",", ".") if _GROUPED.fullmatch(text) else text


_PARAMETER = re.compile(r"(?<![A-Za-z\\])[kmnjl](?![A-Za-z])")


def _renamed_parameter(reference: str, answer: str, problem: str) -> Iterator[Pair]:
    one, two = ({*_PARAMETER.findall(text)} for text in (reference, answer))
    is_period = "\\pi" in reference and "\\pi" in answer
    if is_period and len(one) == len(two) == 1 and not (one | two) & {*_PARAMETER.findall(problem)}:
        yield reference, _PARAMETER.sub(one.pop(), answer)


def _marked_choice(reference: str, answer: str, problem: str) -> Iterator[Pair]:
    if not _LETTER.fullmatch(reference):
        yield reference, _MARKED.sub("", answer)


_PLACES = {
    "integer": 0, "whole": 0, "unit": 0, "one": 0, "tenth": 1, "hundredth": 2, "thousandth": 3,
    "cent": 2, "penny": 2, "ten": -1, "hundred": -2, "thousand": -3,
}  # fmt: skip
_NEAREST = re.compile(r"nearest\s+(\w+?)s?\b")
_DECIMALS = re.compile(r"(\w+)\s+decimal\s+(?:place|digit)", re.I)
_COUNTS = {"one": 1, "two": 2, "three": 3, "four": 4, "1": 1, "2": 2, "3": 3, "4": 4}


def _rounding(reference: str, answer: str, problem: str) -> Iterator[Pair]:
    """The rounding that the problem asks for, or that the reference is, of an exact answer."""
    if not problem:
        return
    try:
        trees = parse(reference), parse(answer)
    except (Unparsable, TooHard):
        return
    is_percent = trees[0].kind == "percent"
    literal = decimal_literal(next(iter(trees[0].args), trees[0]))
    places = _places(problem)
    # Three digits that a fraction rounds to are no coincidence; the reference is its rounding.
    if places is None and literal and literal.digits >= 3 and literal.last_place < 1:
        step = literal.last_place
    elif places is not None:
        step = Fraction(10) ** -places
    else:
        return
    step /= 100 if is_percent else 1
    expected, value = map(real_value, trees)
    exact = exact_value(trees[1])
    if value is None or expected is None:
        return
    # An integer or a decimal must be the rounding itself; what has no decimal may be rounded.
    is_rounding = literal and places is not None and _round(expected, step) == value
    is_exact = exact is None or not is_finite_decimal(exact)
    if is_rounding or (is_exact and _round(value, step) == expected):
        yield answer, answer


def _places(problem: str) -> int | None:
    """Decimal places that the problem asks for, None where it asks for none."""
    nearest = [_PLACES[word] for word in _NEAREST.findall(problem) if word in _PLACES]
    counted = [_COUNTS[word] for word in _DECIMALS.findall(problem) if word in _COUNTS]
    return next(iter([*counted, *nearest]), None)


def _round(value: Fraction, step: Fraction) -> Fraction:
    """The multiple of `step` that is nearest, halves away from zero."""
    scaled = abs(value) / step + Fraction(1, 2)
    return (scaled.numerator // scaled.denominator) * step * (1 if value >= 0 else -1)


STEPS: tuple[Rule, ...] = (
    Rule("exact", 1620, "the same text as the reference", ("72", "72"), ("72", "73")),
    Rule("number", 330, "compared as numbers", ("72", "72.0"), ("7.2", "7.20001")),
    Rule(
        "normalized",
        70,
        "compared as text in one spelling",
        (r"\left( 3, 4 \right)", "( 3, 4 )"),
        (r"\left( 3, 4 \right)", "( 4, 3 )"),
    ),
    Rule("choice", 11, "compared as letters of multiple choice", ("A", "(A)"), ("A", "A or B")),
    Rule("time", 3, "compared as times of day", ("4:30", "4:30 p.m."), ("4:30", "16:30")),
    Rule("text", 12, "compared as words", (r"\text{Sunday}", "sunday"), ("odd", "not odd")),
    Rule("structure", 404, "compared part by part as formulas", ("x+1", "1+x"), ("[1,3]", "1, 3")),
    Rule("percent", 44, "compared as percentages", ("10", r"10\%"), ("10", r"1\%")),
    Rule("ratio", 3, "compared as ratios", ("1:2", "3:6"), ("1:2", "2:1")),
    Rule("equation", 7, "compared as equations", ("x+y=1", "2x+2y=2"), ("x+y=1", "x+y=2")),
    Rule(
        "decimal",
        6,
        "a decimal, compared with the exact number that it may stand for",
        (r"\frac{1}{3}", "0.3333"),
        (r"\frac{1}{3}", "0.333"),
    ),
    Rule(
        "numeric",
        60,
        "compared by their values at several points",
        ("(x+1)^2", "x^2+2x+1"),
        (r"\frac{2^n-(-1)^n}{3}", r"\frac{2^n+1}{3}"),
    ),
    Rule(
        "symbolic",
        1,
        "compared by computer algebra",
        ("1/4", r"\int_0^1 x^3 dx"),
        ("1/3", r"\int_0^1 x^3 dx"),
    ),
    Rule(
        "words",
        2,
        r"compared as what `\text{…}` holds",
        ("3", r"\text{3 days}"),
        ("3", r"\text{3 dozen}"),
    ),
)
"""What decides without another reading; `lib.verifier.equivalence` has their order."""

REFUSALS = {
    "units": "quantities with different units",
    "echo": "a formula or the text of the problem, repeated",
    "no answer": "no answer, which equals nothing",
    "unparsed": "not read as mathematics",
    "undecided": "neither equal nor different for certain",
    "limit": "too large to compare",
    "timeout": "computer algebra took too long",
    "over budget": "computer algebra had no time left for this batch",
    "worker failure": "computer algebra broke down",
    "failure": "a fault of the verifier",
}
"""Why an answer is refused, where it is not simply another."""

FIRST: tuple[Rule, ...] = (
    Rule(
        "quantifier",
        4,
        r"a quantifier over a whole set of numbers: `for all x \in \mathbb{Z}`",
        ("2n", "2n for all n"),
        ("2n", "2n for n > 5"),
        _rewritten(_QUALIFIER, ""),
    ),
    Rule(
        "remark",
        4,
        r"a mark at the end, a reason; `i.e.`, `or equivalently` and `about` as = and ≈, checked",
        (r"\frac{5}{36}", r"\frac{5}{36} \text{ (approximately } 0.139)"),
        ("7", "7 or about 99"),
        _each(_without_remark),
    ),
    Rule("ordinal", 1, "`12th` as 12", ("12", "12^{th}"), ("12", "13th"), _rewritten(_ORDINAL, "")),
    Rule(
        "words for numbers",
        8,
        "`twenty-one`, `3 hundred`, `7 tenths`, `7 squared`, `7 plus 1`",
        ("21", "twenty-one"),
        ("7", "7 hundred"),
        _each(in_digits),
    ),
)
"""Rules that are applied one on top of the other; the rest is applied to what they leave."""

RULES: tuple[Rule, ...] = (
    Rule(
        "labels",
        4,
        "several labels that only one side has",
        ("1, 2", "Maximum = 2, Minimum = 1"),
        ("5", "Maximum: 5, Minimum: 3"),
        _labels,
    ),
    Rule(
        "grouped digits",
        3,
        "`1.234.567`, `1.234,56` and `1'000'000`",
        ("1234567", "1.234.567"),
        ("1234", "1.234"),
        _each(_grouped),
    ),
    Rule(
        "decimal comma",
        4,
        "`3,14` in the answer",
        ("3.14", "3,14"),
        ("3, 14", "3.14"),
        _rewritten(_DECIMAL_COMMA, r"\1.\2", reference=False),
    ),
    Rule(
        "marked choice",
        2,
        "`(B) 12` for 12",
        ("12", r"\textbf{(B)}\ 12"),
        ("12", "(B) 14"),
        _marked_choice,
    ),
    Rule(
        "layout",
        10,
        r"a `matrix` that is a layout, one symbol a row",
        ("1-x", r"\begin{matrix} 1 \\ - \\ x \end{matrix}"),
        ("12", r"\begin{matrix} 1 \\ 2 \end{matrix}"),
        _rewritten(_LAYOUT, " ", reference=False),
    ),
    Rule(
        "system",
        2,
        "`cases` as a system",
        ("(1,2)", r"\begin{cases} x=1 \\ y=2 \end{cases}"),
        ("(1,2)", r"\begin{cases} x=2 \\ y=1 \end{cases}"),
        _rewritten(_SYSTEM, lambda match: match[1].replace(r"\\", ",")),
    ),
    Rule("point", 1, "`P(1,2)`", ("(1,2)", "P(1,2)"), ("(1,2)", "P(2,1)"), _rewritten(_POINT, "")),
    Rule(
        "set of numbers",
        2,
        r"`all real numbers`, `all positive integers`",
        (r"(-\infty,\infty)", "all real numbers"),
        (r"(0,\infty)", "all real numbers"),
        _rewritten(
            _ALL_NUMBERS,
            lambda match: rf"\mathbb{{{_NUMBERS_OF[match[1].lower()]}}}".replace("^+}", "}^+"),
        ),
    ),
    Rule(
        "half line",
        2,
        r"`\mathbb{R}^+`, `\mathbb{R}_{<0}`",
        (r"(0,\infty)", r"\mathbb{R}^+"),
        (r"[0,\infty)", r"\mathbb{R}^+"),
        _rewritten(
            _HALF_LINE,
            lambda match: r"(0,\infty)" if (match[1] or match[2]) in "+>" else r"(-\infty,0)",
        ),
    ),
    Rule(
        "turned brackets",
        0,
        "`]1,3[`",
        ("(1,3]", "]1,3]"),
        ("[1,3]", "]1,3["),
        _each(_in_parentheses),
    ),
    Rule(
        "infinitely many",
        1,
        "infinitely many as ∞",
        (r"\infty", "infinitely many"),
        (r"\infty", "many"),
        _rewritten(_INFINITE, r"\\infty"),
    ),
    Rule(
        "empty set",
        6,
        "no solutions, none",
        (r"\emptyset", "no real solutions"),
        ("0", "none"),
        _rewritten(_NOTHING, r"\\emptyset"),
    ),
    Rule(
        "decision",
        1,
        "`Yes, because …`, unless the rest takes it back",
        ("Yes", "Yes, it is possible."),
        ("Yes", "Yes, No"),
        _each(_decided),
    ),
    Rule(
        "sentence",
        12,
        "a frame of known words or of the problem's nouns: `The answer is 7`, `7 stuffed goats`",
        ("7, 4", "7 stuffed goats and 4 helicopters", "How many stuffed goats and helicopters?"),
        ("7", "The answer is at least 7"),
        _words_of_problem,
    ),
    Rule(
        "parameter",
        4,
        r"`k\pi` and `n\pi` where neither letter is the problem's",
        (r"k\pi", r"n\pi", "Solve for x."),
        (r"k\pi", r"n\pi", "Find the area in terms of $n$."),
        _renamed_parameter,
    ),
    Rule(
        "rounding",
        3,
        "the rounding that is asked for, or that the reference is",
        ("3.14", r"\pi", "Round to two decimal places."),
        ("1200", "1234", "Round to the nearest hundred."),
        _rounding,
    ),
)
TABLE = (*STEPS, *FIRST, *RULES)
"""Every rule once, as docs/verifier.md prints it."""

DESCRIPTIONS = {rule.name: rule.description for rule in TABLE} | REFUSALS
"""What `decided_by` means, in words for a reader."""


def readings(reference: str, answer: str, problem: str = "") -> Iterator[Reading]:
    """Pairs that say the same as two normalized texts that were not equal as they are."""
    if max(len(reference), len(answer)) > _MAX_CHARS:
        return
    (name, one, over), (step, two, other) = _plain(reference), _plain(answer)
    if over and other and over != other:
        return
    if (one, two) != (reference, answer):
        yield step or name or "words", one, two
    for rule in RULES:
        for new in rule.pairs(one, two, problem):
            if new != (one, two):
                yield rule.name, normalize(new[0]), normalize(new[1])


@remembered(4096)
def _plain(text: str) -> tuple[str, str, set[tuple[str, ...]]]:
    """The last rule of `FIRST` that rewrites `text`, what they make of it, and its domains."""
    name, plain = "", normalize(_TEXT.sub(r" \1 ", text)) if "\\" in text else text
    domains = _domains(plain)
    for rule in FIRST:
        for new, _ in rule.pairs(plain, "", ""):
            if new != plain:
                name, plain = rule.name, normalize(new)
    return name, plain, domains
