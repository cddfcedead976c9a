r"""The formula around a box, tags or a number decides what they say: `-\boxed{5}` says −5.

Words beside a mark are no part of its formula, and a relation separates: `x \ge \boxed{5}` says 5.
"""

import collections
import re

from reckon_verifier.evaluate import as_number
from reckon_verifier.tree import FUNCTIONS, names
from reckon_verifier.words import PIECE, has_words, is_unit, is_word

# No end is the point of `3.5`, one after a single small letter (`at x = a. Then`), or the sign of
# `5!`. A character that could not be decoded separates too.
END = re.compile(
    # Most positions begin none of these and fail here, at one comparison.
    r"(?=[.!?。！？।<\x00-\x08\n-\x1f\x7f-\x9f\ufffdSsTtHhi因所इ])"
    r"(?:(?<!\b[a-z])\.(?=\s|(?<!\d\.)$)|(?<![\d)}])!(?=\s|$)|\?(?=\s|$)|[。！？।]|</?\w+>"
    r"|[\x00-\x08\n-\x1f\x7f-\x9f\ufffd]"
    r"|\b(?:[Ss]o|[Tt]hus|[Tt]herefore|[Hh]ence|i\.e\.)[\s,]|因此|所以|इसलिए)"
)
STOP = re.compile(rf"(?!\n){END.pattern}")
"""`END` without the end of a line, over which a formula may go on."""
# `#`, a letter `$x$` of a sentence, an arrow; an article or a pronoun; two letters by themselves.
_SEPARATOR = re.compile(
    r"(?P<sign>#|\$[A-Za-z]\$(?=\s)|[→⇒∴✅]|[-=]>"
    r"|(?<!\S)(?:A|I|a(?=\s(?:[a-z]{2}|\$|\\[(b])))(?!\S)"
    rf"|(?<!\S)(?!or|ln|pi)[A-Za-z]{{2}}(?=\s+[$\\\w(]))|{PIECE.pattern}"
)
_LAYOUT = names(
    r"\rightarrow \Rightarrow \longrightarrow \Longrightarrow \implies \iff \therefore \to \n \item"
    r" \hfill \newline \par \blacksquare \square \checkmark \Box \qed"
)
"""Commands that separate mathematics as words do."""
# The words that a number may have directly after it: `60people`, `7V battery`. `7K people` are more
# than 7.
_GLUED = re.compile(
    r"(?<![^\W\d_]|[\\{])(?:[^\W\d_]{2,}|[AC-JLN-SU-Z](?=\s[a-z]{2})|[A-Z](?=['’&]))"
)
LOOKS = re.compile(
    r"\\(?:text)?color\s*\{[a-zA-Z]+\}|\\(?:displaystyle|[lL]arge|LARGE|[hH]uge|bf|rm|q?quad)"
    r"(?![A-Za-z])|\\(?:[hv]space|tag|label)\*?\s*\{[^{}]*\}|\\[,;:! ]|~|\\(?=\\boxed)"
)
"""What changes only the looks of a formula."""
# Mathematics beyond the ends of a formula touches a mark only if it lacks an operand: the minus of
# `-$\boxed{5}$`.
_DELIMITER = r"(?:(?<!\\)\$\$?|\\[()\[\]]|\*\*)"
_EDGE = (
    rf"{_DELIMITER}|__|\\\\(?:\[[^\]]*\])?|&"
    r"|\\(?:begin|end)\s*\{(?!\w*matrix|cases|array)\w+\*?\}"
)
_INLINE = rf"(?:(?:{_EDGE})[^\S\n]*)+"
_EDGES = rf"[^\S\n]*(?:(?:{_EDGE}|\n)[^\S\n]*)+"
EDGES = re.compile(_EDGES)
_OPERATOR = (
    r"(?:[-+*/^_=<>≤≥≠±∓×·÷−–≈≡≢]|\\(?:cdot|times|div|pm|mp|neq?|leq?|geq?|approx|equiv|not|notin"
    r"|ast|circ|in|sim|cong|bmod)(?![A-Za-z]))"
)
_OPEN_END = re.compile(
    rf"(?P<end>{_OPERATOR}|(?<![A-Za-z])(?:{'|'.join(sorted(FUNCTIONS))}|[dt]?frac)){_EDGES}"
    rf"|(?P<tight>[\w)}}]){_DELIMITER}\Z"
)
_OPEN_BEGIN = re.compile(
    rf"{_INLINE}(?=\s*(?:{_OPERATOR}|\\?%|pi\b))|\A{_DELIMITER}(?=\d|\((?![^()]*[a-z]{{2}}))"
)
BINARY = re.compile(r"\s*(?:[+×·÷^]|\\(?:cdot|times|div|pm)\b)")
_BRACKET = r"(?<!\\)[()\[\]]|\\?[{}]"
# The sign of an item at the beginning of a line, `-`, `(b)` or `2.`; a dash; `Step 2: `.
_ITEM = re.compile(
    r"\A\s*(?:[-–—]|\([a-z]\))\s+|\n\s*(?:[-–—+*>]|\(?(?:\d{1,2}|[a-z]|[ivx]+)[.)])\s+"
    r"|(?<=[\w)]):\s+"
)
# What splits a formula: relations that give the value beside them, and commas of a list.
_SPLIT = re.compile(
    rf"(?P<bracket>{_BRACKET})"
    r"|(?P<relation>(?<!\\not)(?<!\\not\s)(?:(?:(?<![!/<>])|(?<=[\w)}\]]!))=(?![/\u0338])|[≤≥≈≡∈]"
    r"|[<>]=|\\(?:approx|equiv|cong|sim(?:eq)?|leq?(?:slant)?|geq?(?:slant)?|in)(?![A-Za-z])))"
    r"|(?P<comma>(?<!\d),|,(?!(?:\s*|\\!)\d{3}(?!\d))|;"
    r"|\\text\s*\{\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z]))"
)
MODULUS = re.compile(
    r"(?:\\p?mod|\(\s*\\?(?:b?mod|(?:text|mathrm)\s*\{\s*mod\s*\})|(?P<operator>\\bmod))"
    r"\s*\{?(?P<modulus>\w+(?:\^\{?\w+\}?)?)\}?\s*\)?"
)
# An open matrix, whose entries follow.
_ENTRIES = re.compile(r"\\begin\s*\{(\w*matrix|cases|array)\*?\}(?!.*\\end\s*\{\1)", re.DOTALL)
# A number or a tuple of numbers, with which no computation is left to do.
_VALUE = re.compile(r"[-+]?(?:\d[\d,.]*|\([-\d,.]+\))")
REACH = 250
"""Number of characters before and after a mark that are read."""
_DASH = "-–—/ \t\n"
_MARK = "\0"
"""Takes the place of a mark in its formula."""


def said(text: str, start: int, end: int, content: str) -> str:
    r"""Return what a mark, `text[start:end]`, says: its content, or the formula that it is part of.

    `x = -\boxed{5}` gives `-\boxed{5}`, and `(3, \boxed{5})` the whole tuple: the grammar decides
    whether they are values.

    Args:
        text: a text with a box or tags.
        start: the index where the mark begins.
        end: the index after it.
        content: the text in it; '' for several boxes, whose formula is the answer.
    """
    mark = text[start:end]
    before = LOOKS.sub(" ", text[max(0, start - REACH) : start])
    after = LOOKS.sub(" ", text[end : end + REACH])
    entries = _ENTRIES.search(before)
    if entries and not (entries[1] == "array" and before.rstrip(" $&").endswith("=")):
        return before[entries.start() :] + mark + after.partition("\n\n")[0]
    lead, trail = touching(before, after)
    modulus = MODULUS.match(trail.lstrip())
    if modulus and (not modulus["operator"] or "equiv" in lead or "≡" in lead):
        trail = trail.lstrip()[modulus.end() :]
        content = content and rf"{content} \pmod{{{modulus['modulus']}}}"
    lead, trail = _without_open_brackets(lead, trail)
    is_entry, left, right, values = _sides(lead + _MARK + trail)
    is_part = left == lead and BINARY.match(lead) and len(lead) < len(before.rstrip())
    if is_part or re.search(r"(?<!\w)\.\Z", before):
        return before + mark + trail
    if is_entry or not content:
        return lead + mark + trail
    if core(left) or core(right.rstrip(_DASH)):
        return left + mark + right
    # `7 = \boxed{5}` has two values.
    others = [each for each in map(_packed, values) if _VALUE.fullmatch(each)]
    if not others:
        return content
    own = as_number(_packed(content))
    is_one = all(each == _packed(content) or own == as_number(each) is not None for each in others)
    return content if is_one else " = ".join([*others, content])


def core(text: str) -> str:
    """Remove spaces, punctuation and currencies around the mathematics beside a mark."""
    return text.removeprefix("/").strip(" \t\n,;:.$€£¥\\")


def _packed(text: str) -> str:
    r"""Remove spaces, and write `\frac{1}{2}` as 1/2."""
    return re.sub(r"\\[dt]?frac\{(-?\d+)\}\{(\d+)\}", r"\1/\2", re.sub(r"\s", "", text))


def _without_open_brackets(lead: str, trail: str) -> tuple[str, str]:
    """Remove brackets with words in them, whose other end is therefore not in the formula."""
    closer, opener = _unmatched(lead + _MARK + trail)
    place = len(lead)
    if opener is not None and opener > place:
        inner, rest = trail[: opener - place - 1], trail[opener - place :]
        trail = inner if not rest.strip() or inner.endswith(" ") else trail
    elif opener is not None and not lead[:opener].strip() and lead[opener:][:1] in ("(", "["):
        lead = lead[opener + 1 :]
    if closer is not None and closer > place and not core(trail[closer - place :].rstrip(_DASH)):
        trail = trail[: closer - place - 1]
    return lead, trail


def _unmatched(text: str) -> tuple[int | None, int | None]:
    """Return the indices of the first bracket without an opening one, and without a closing one."""
    opened: list[int] = []
    closer = None
    for bracket in re.finditer(_BRACKET, text):
        if bracket[0][-1] in "([{":
            opened.append(bracket.start())
        elif opened:
            opened.pop()
        elif closer is None:
            closer = bracket.start()
    return closer, opened[0] if opened else None


def _sides(formula: str) -> tuple[bool, str, str, list[str]]:
    r"""Split a formula with a mark at its relations and commas outside brackets.

    Returns:
        True if the mark is an entry of a list; the text before and after it on its side of the
        relations; the values of the sides that are equal to this one: for `x = 7 = -\boxed{5}`
        False, " -", "" and [" 7 "].
    """
    sides, signs, depth, start = [], [""], 0, 0
    for part in _SPLIT.finditer(formula):
        if part["bracket"]:
            depth = max(0, depth + (1 if part[0][-1] in "([{" else -1))
        elif not depth:
            sides.append(formula[start : part.start()])
            signs.append("," if part["comma"] in (",", ";") else part["comma"] or part[0])
            start = part.end()
    sides.append(formula[start:])
    signs.append("")
    place = next(index for index, side in enumerate(sides) if _MARK in side)
    commas = [index for index, sign in enumerate(signs) if re.search("[,;]|and|or", sign)]
    first = max((n for n in commas if n <= place), default=0)
    last = min((n for n in commas if n > place), default=len(sides))
    # `a, b = \boxed{1, 2}` and `a = 1 and b = \boxed{2}` are no lists.
    is_equation = first < place and (signs[first] != "," or {*range(1, first + 1)} <= {*commas})
    is_entry = any(map(core, sides[last:])) or (any(map(core, sides[:first])) and not is_equation)
    left, right = sides[place].split(_MARK)
    values = [sides[n + side] for n, side in ((place, -1), (place + 1, 0)) if signs[n] == "="]
    return is_entry, left, right, values


def touching(before: str, after: str) -> tuple[str, str]:
    r"""Return the mathematics at the end of `before` and at the beginning of `after`.

    It goes to the next word, the end of the sentence or of the formula (`$`), and further only if
    an operand is missing. The ends of formulas in it are blank: both texts keep their lengths.
    """
    stop = final(STOP, before)
    begin = stop.end() if stop else 0
    pieces = [*_SEPARATOR.finditer(before[begin:])]
    begin += next((each.end() for each in reversed(pieces) if _separates(each)), 0)
    # A column of a table, `| x | \boxed{5} |`.
    is_row = before.rpartition("\n")[2].lstrip().startswith("| ")
    begin = max(begin, before.rfind("|") + 1) if is_row else begin
    lead = before[begin:]
    opening, closing = (max(map(lead.rfind, each)) for each in ((r"\(", r"\["), (r"\)", r"\]")))
    is_inside = lead.replace("$$", "$").count("$") % 2 == 1 or opening > closing
    line = "\n" * (not begin)
    items = [] if is_inside else [*_ITEM.finditer(line + lead)]
    # Not the minus of `2 apples - \boxed{5}`.
    if items and not (items[-1][0].strip() in "-–—" and re.search(r"\d\s*\w*\Z", before[:begin])):
        lead = lead[items[-1].end() - len(line) :]
    lead = lead.replace("\n", " ") if is_inside else lead
    if _unmatched(lead)[1] is None:
        lead = EDGES.split(_OPEN_END.sub(_blank, lead))[-1]
    # Within a formula, `!` after a new line is no end of a sentence.
    place = len(after) - len(after.lstrip(" \n!")) if is_inside else 0
    word = next(filter(_separates, _SEPARATOR.finditer(after)), None)
    ends = (STOP.search(after, place), word, _glued(after))
    trail = after[: min((each.start() for each in ends if each), default=len(after))]
    trail = trail.partition("|")[0] if is_row else trail
    if is_inside:
        formula = re.split(r"\$|\\[)\]]", trail, maxsplit=1)[0]
        trail = formula.replace("\n", " ") + trail[len(formula) :]
    trail = _OPEN_BEGIN.sub(_blank, _OPEN_END.sub(_blank, trail))
    if _unmatched(EDGES.split(trail)[0])[1] is None:
        trail = EDGES.split(trail)[0]
    return EDGES.sub(_blank, lead), EDGES.sub(_blank, trail)


def _blank(match: re.Match[str]) -> str:
    """Return the operator before the end of a formula, and spaces for the end."""
    kept = match[match.lastgroup] if match.lastgroup else ""
    return kept.ljust(len(match[0]))


def _separates(piece: re.Match[str]) -> bool:
    r"""Return True for what is no mathematics: the word `thus`, `\text{ cm}`, an arrow."""
    if piece["sign"] or piece[0] in _LAYOUT:
        return True
    if piece["word"]:
        return is_word(piece["word"])
    # Words, or a unit of two letters or more: one letter, `\text{m}`, may be a variable.
    inside = (piece["text"] or "").strip(" ~")
    is_text = inside and not piece[0].startswith(r"\operatorname")
    return bool(is_text) and (has_words(inside) or (len(inside) > 1 and is_unit(inside)))


def _glued(text: str) -> re.Match[str] | None:
    """Return the first word without a space before it: of `km` or `$th`, not of `pi` or `xy`."""
    is_outside = text.startswith("$")
    for match in _GLUED.finditer(text):
        word = match[0]
        if is_word(word) or is_unit(word) or len(word) == 1 or (is_outside and word != "pi"):
            return match
    return None


def sentence_before(text: str, place: int) -> str:
    """Return the text of its sentence before an index, at most `REACH` characters."""
    return END.split(text[max(place - REACH, 0) : place])[-1]


def spoken(text: str) -> list[str]:
    """Return the words of a text in lower case; "not" for "isn't"."""
    return re.findall(r"(?<![\\a-z])[a-z]+", text.lower().replace("n't", " not"))


def final(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the last match of `pattern`, or None."""
    last = collections.deque(pattern.finditer(text), maxlen=1)
    return last[0] if last else None
