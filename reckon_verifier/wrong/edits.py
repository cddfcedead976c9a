r"""Small edits of a reference that all change its meaning.

Most are a substitution at one place (edits.tsv): replacement, pattern, and the texts in which the
edit could leave the meaning as it is (`(-3)^2` with another sign, `\sin x + C`). The rest are
functions, for edits of entries, digits or words. No edit looks at the problem.
"""

import csv
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from reckon_verifier.wrong.families import UNITS, Case, Family, Pair, value

LENGTH = 80
"""Characters of the longest edited reference."""

_VARIABLE = r"(?<![\\A-Za-z])[a-dfghj-z](?![A-Za-z])"
_ZERO = r"(?<![\d.,])0(?![\d.])"
_EVEN = r"[)}|]\^\{?[2468]"
"""An even power: it hides the sign of its base."""


def _replaced(match: re.Match[str], new: str, group: int = 0) -> Pair:
    """Pair the searched text with one that has `new` in the place of a match or its group."""
    text = match.string
    return Pair(text, text[: match.start(group)] + new + text[match.end(group) :])


def _next(match: re.Match[str]) -> str:
    """Return the whole match with its number one larger."""
    at, end = match.start(1) - match.start(), match.end(1) - match.start()
    return f"{match[0][:at]}{int(match[1]) + 1}{match[0][end:]}"


class Edit(NamedTuple):
    """A replacement at one place of a text."""

    new: str
    """Replacement; `+1` for a number one larger."""
    old: str
    """Pattern to be replaced."""
    unless: str = "(?!)"
    """Pattern of texts that keep their meaning, or might."""
    needs: str = ""
    """Pattern of texts in which the edit is certain."""


_INSENSITIVE = r"\\(?:min|max|l?floor|l?ceil|operatorname|gcd|lim)"
_SUM = rf"[CcKkn]|\\in|dots|\\[mp][pm]|mod|\(-1\)|\\(?:sin|cos|tan|cot|text)|i|±|{_ZERO}"
_SUM += f"|{_INSENSITIVE}"
_BASES_OF_ONE = rf"(?:^|[^\d.])[01]\^|i\^|\(-1\)\^|=\s*0|\^\{{?0|{_ZERO}|{_INSENSITIVE}"
_PLACES = r"\\(?:log|int|sum|prod|lim|max|min)"
_POINTS = r"\\sqrt\s*\{?[01]\}?(?![\d.])"

_PATTERNS = {
    "BASES_OF_ONE": _BASES_OF_ONE, "EVEN": _EVEN, "INSENSITIVE": _INSENSITIVE, "PLACES": _PLACES,
    "POINTS": _POINTS, "SUM": _SUM, "VARIABLE": _VARIABLE, "ZERO": _ZERO,
}  # fmt: skip
"""Patterns for `§ZERO§` and its like in edits.tsv."""


def _substitutions() -> dict[str, list[Edit]]:
    """Read edits.tsv, by kind."""
    edits: dict[str, list[Edit]] = {}
    with Path(__file__).with_name("edits.tsv").open(encoding="utf-8", newline="") as lines:
        # Unquoted: the file has plain LaTeX.
        for kind, new, *patterns in csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
            whole = (re.sub("§(.*?)§", lambda match: _PATTERNS[match[1]], x) for x in patterns)
            old, *others = (pattern or "(?!)" for pattern in whole)
            edits.setdefault(kind, []).append(Edit(new, old, *others))
    del edits["kind"]
    return edits


def _substituted(edits: list[Edit]) -> Family:
    def family(case: Case) -> Iterator[Pair]:
        for edit in edits:
            if re.search(edit.unless, case.text) or not re.search(edit.needs, case.text):
                continue
            for match in re.finditer(edit.old, case.text):
                new = _next(match) if edit.new == "+1" else match.expand(edit.new)
                yield _replaced(match, new)

    return family


def digits(case: Case) -> Iterator[Pair]:
    """Transpose two digits, drop or double one, move or set a decimal point."""
    text = case.text
    if re.search(rf"mod|{_BASES_OF_ONE}", text):
        return
    for match in re.finditer(r"(?<![_\d.])(?<!_\{)\d+(?:\.\d+)?", text):
        number, whole = match[0], match[0].isdigit()
        changed = [
            number[:at] + number[at + 1] + number[at] + number[at + 2 :]
            for at in range(len(number) - 1)
            if number[at : at + 2].isdigit() and number[at] != number[at + 1]
        ]
        is_part = text.startswith(",", match.end())
        if whole and len(number) > 1 and number[0] != "0" and not is_part:
            changed += [number[:at] + number[at + 1 :] for at in range(len(number))]
            changed += [number[: at + 1] + number[at:] for at in range(len(number))]
            changed.append(f"{number[:-1]}.{number[-1]}")
        elif "." in number and float(number):
            before, _, after = number.partition(".")
            changed.append(f"{before}{after[0]}.{after[1:] or 0}")
        yield from (_replaced(match, other) for other in dict.fromkeys(changed))


def joined_digits(case: Case) -> Iterator[Pair]:
    """Join the digits without the text between them, in bold, as text and bare."""
    text = case.text
    joined = "".join(re.findall(r"\d", text))
    built = re.fullmatch(r"(?:\d|\\frac|\\sqrt|\\pi|[-{}^().,/! ])+", text)
    plain = re.fullmatch(r"\(?\s*[\d, ]+\.?0*\s*\)?", text) and "," not in text.strip("0123456789 ")
    grouped = re.fullmatch(r"\d{1,3}(?:(?:,|\{,\})\d{3})+(?:\.0*)?", text)
    if built and joined.strip("0") and not plain and not grouped and not text.endswith("."):
        yield from (Pair(text, shape % joined) for shape in (r"\mathbf{%s}", r"\text{%s}", "%s"))


def _entries(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _is_turned(one: str, two: str) -> bool:
    """Return True if swapping the two changes the meaning, however the letters are called."""
    letters = [set(re.findall(_VARIABLE, re.sub(r"\\\w+", " ", part))) for part in (one, two)]
    return sorted(one) != sorted(two) and (not all(letters) or letters[0] == letters[1])


def orders(case: Case) -> Iterator[Pair]:
    """Swap two entries of a tuple, an interval, a matrix, a ratio or a fraction."""
    text = case.text
    if match := re.fullmatch(r"([(\[])(.*)([)\]])", text):
        parts = _entries(match[2])
        if len(parts) > 1 and all(parts) and "\\," not in text and _is_turned(parts[0], parts[1]):
            inside = ", ".join((parts[1], parts[0], *parts[2:]))
            yield Pair(text, f"{match[1]}{inside}{match[3]}")
    body = re.search(r"(\\begin\{[pb]matrix\})(.*)(\\end)", text)
    for mark in ("&", r"\\") if body else ():
        cells = body[2].split(mark)  # type: ignore[index]
        for at in range(len(cells) - 1):
            one, two = (cell.strip() for cell in cells[at : at + 2])
            if value(one) is not None and value(two) is not None and value(one) != value(two):
                swapped = mark.join((*cells[:at], two, one, *cells[at + 2 :]))
                yield _replaced(body, swapped, 2)  # type: ignore[arg-type]
    fractions = r"\\([dt]?frac|binom)\{([^{}|]+)\}\{([^{}|]+)\}"
    for match in () if re.search(_INSENSITIVE, text) else re.finditer(fractions, text):
        one, two = match[2], match[3]
        sizes = abs(value(one) or 0), abs(value(two) or 1)
        if _is_turned(one, two) and value(one) != 0 and sizes[0] != sizes[1]:
            yield _replaced(match, rf"\{match[1]}{{{two}}}{{{one}}}")
    if (match := re.fullmatch(r"(\d+)\s*:\s*(\d+)", text)) and int(match[1]) != int(match[2]):
        yield Pair(text, f"{match[2]}:{match[1]}")
    if match := re.fullmatch(r"(\d+)\^\{?(\d+)\}?", text):
        base, power = int(match[1]), int(match[2])
        if len({base, power, 2, 4}) > 2 and base != power:
            yield Pair(text, f"{power}^{{{base}}}")


def items(case: Case) -> Iterator[Pair]:
    """Add or drop an item in a list or set of formulas or words."""
    body = re.fullmatch(r"(\\\{)?(.*?)(\\\})?", case.text)
    parts = _entries(body[2]) if body else []
    unclear = r"\\in|\\,|where|for|text|dots|\.\.|mid|:|[\[(]|\{,|[<>]|\\[lg]e|\}\s*\S+\s*\\\{"
    if re.search(unclear, case.text) or value(case.text) is not None:
        return
    if len(set(parts)) < max(2, len(parts)) or not all(parts):
        return
    for other in ([*parts, "907.31"], *itertools.combinations(parts, len(parts) - 1)):
        yield _replaced(body, ", ".join(other), 2)  # type: ignore[arg-type]


def letters(case: Case) -> Iterator[Pair]:
    """Replace or capitalise one of several occurrences of a variable."""
    text = case.text
    if re.search(rf"text|mathrm|dots|\.\.|{_ZERO}", text):
        return
    for name in sorted(set(re.findall(_VARIABLE, text)) - {"q"}):
        places = [match for match in re.finditer(_VARIABLE, text) if match[0] == name]
        for match in places if len(places) > 1 else ():
            yield _replaced(match, "q")
            yield _replaced(match, name.upper())


def scaled(case: Case) -> Iterator[Pair]:
    """Double a formula, add 1, or multiply it by i."""
    if case.is_expression and case.value is None and not re.search("[CcKk]", case.text):
        text = case.text
        yield from (Pair(text, shape.format(text)) for shape in ("2({})", "({})+1", "i({})"))


_OPPOSITES = re.split(
    ", ",
    "all some, every some, some all, always sometimes, never always, most least, more less, "
    "fewer more, greater less, even odd, odd even, both neither, positive negative, negative "
    "positive, increasing decreasing, maximum minimum, minimum maximum, before after, after "
    "before, first second, second first, left right, inside outside, rational irrational, prime "
    "composite, two three, larger smaller, true false, True False, Yes No, No Yes, convergent "
    "divergent, parallel perpendicular, acute obtuse, north south, Monday Tuesday, and or, "
    "radius diameter, length width, reject accept, with without, wins loses, converges "
    "diverges, exists vanishes, no some, red blue, a.m. p.m., AM PM, composite prime, irrational "
    "rational, decreasing increasing",
)


def opposites(case: Case) -> Iterator[Pair]:
    """Replace a word by its opposite; turn a word's letters or a phrase's words."""
    text = case.text
    for old, new in map(str.split, _OPPOSITES):
        has_words = old != "and" or not re.search(r"\d|[,&$]|\b[A-Z]\b|\\text", text)
        for match in re.finditer(rf"(?<![\\\w]){re.escape(old)}(?!\w)", text) if has_words else ():
            yield _replaced(match, new)
    bare = re.fullmatch(r"\\text\{([A-Za-z][a-z]{2,})\}|([A-Za-z][a-z]{3,})", text)
    word = (bare[1] or bare[2]).lower() if bare else ""
    for at in range(len(word) - 1):
        if word[at] != word[at + 1]:
            yield Pair(text, rf"\text{{{word[:at]}{word[at + 1]}{word[at]}{word[at + 2 :]}}}")
    if word and word != word[::-1]:
        yield Pair(text, word[::-1])
    words = re.fullmatch(r"\\text\{([A-Za-z ]+)\}|([A-Za-z ]+)", text)
    phrase = (words[1] or words[2]).split() if words else []
    if len(phrase) > 2 and not {"and", "or", "is", "are"} & {*phrase} and phrase[0] != phrase[-1]:
        yield Pair(text, " ".join((phrase[-1], *phrase[1:-1], phrase[0])))


def other_units(case: Case) -> Iterator[Pair]:
    """Replace the unit of a quantity by another."""
    text = case.text
    if not re.search(r"\d", text):
        return
    for one, two in UNITS:
        short = len(one) == 1 and not re.search(r"text|mathrm", text)
        match = re.search(rf"(?<![A-Za-z\\/^]){re.escape(one)}(?![A-Za-z/^])", text)
        if match and not short:
            yield _replaced(match, two)


def _short(family: Family) -> Family:
    """Restrict a family to answers: some sets have whole solutions in their place."""

    def short(case: Case) -> Iterator[Pair]:
        if len(case.text) <= LENGTH and not re.search(r"boxed|\n|\\\\n", case.text):
            yield from family(case)

    return short


_OTHERS = (digits, joined_digits, orders, items, letters, scaled, opposites, other_units)
_KINDS = {name: _substituted(edits) for name, edits in _substitutions().items()}
_KINDS |= {family.__name__.replace("_", " "): family for family in _OTHERS}

EDITS = {name: _short(family) for name, family in _KINDS.items()}
