"""Splits a normalized answer into tokens."""

import functools
import re
from typing import NamedTuple

from lib.verifier.limits import MAX_TOKENS
from lib.verifier.tree import TooHard, Unparsable
from lib.verifier.vocabulary import (
    DEGREE_WORDS,
    FRAME,
    FUNCTIONS,
    HEDGES,
    ONE_FOR,
    PERCENT_WORDS,
    PLAIN_GREEK,
    PLAIN_WORDS,
    STYLES,
    is_unit,
)


class Token(NamedTuple):
    """One token.

    Attributes:
        kind: "number", "letter", "command", "text", "separator", "operator" or "end".
        text: what it says; of a command the name without backslash.
    """

    kind: str
    text: str


END = Token("end", "")

_STYLE_NAMES = "|".join(sorted(STYLES, key=len, reverse=True))
_GROUPED = r"[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)(?:\.\d+)?|"
_PATTERN = (
    r"(?P<space>\s+)"
    rf"|\\(?:{_STYLE_NAMES})\*?\s*\{{(?P<style>[^{{}}]*)\}}"
    r"|(?P<number>GROUPED(?:\d+(?:\.\d+|\.(?!\d))?|\.\d+)(?:[eE][+-]?\d+(?![\d.]))?)"
    r"|(?P<command>\\(?:[A-Za-z]+|[{}%|_&#\\]))"
    r"|(?P<word>[A-Za-z]+)"
    r"|(?P<operator>\*\*|<=|>=|!=|==|:=|=>|[-+*/^_=<>()\[\]{}|,;:!%'&])"
)
_SEPARATE = re.compile(_PATTERN.replace("GROUPED", ""))
_GROUPING = re.compile(_PATTERN.replace("GROUPED", _GROUPED))
_DEPTH = {"(": 1, "[": 1, "{set": 1, ")": -1, "]": -1, "}set": -1}
_COMPOSITE = re.compile(r"[\d\\,;]|\b(?:and|or)\b")
_CHOICE = re.compile(r"[\s(\[]*([A-Za-z])[\s)\].:]*")
_JOINING = ("and", "or", ",", ";")
_OPERATORS = {"**": "^", "<=": "le", ">=": "ge", "!=": "ne", "==": "=", ":=": "=", "=>": "ge"}
_SIGNS = {"to": ":", "per": "/"}
_VOWEL = re.compile("[aeiouyAEIOUY]")


def tokenize(text: str) -> list[Token]:
    """Tokens of `text`, the last one of kind "end".

    "1,234" is one number, except between brackets, where a comma more often separates.

    Raises:
        Unparsable: a character that is no part of mathematics.
        TooHard: more than `MAX_TOKENS`.
    """
    tokens: list[Token] = []
    position = depth = 0
    while position < len(text):
        pattern = _SEPARATE if depth else _GROUPING
        match = pattern.match(text, position)
        if match is None:
            raise Unparsable(f"unexpected {text[position]!r}")
        position = match.end()
        if match.lastgroup != "space":
            new = _tokens(match, tokens)
            for token in new:
                depth += _DEPTH.get(token.text, 0)
                tokens.append(token)
        if len(tokens) > MAX_TOKENS:
            raise TooHard(f"more than {MAX_TOKENS} tokens")
    return [*tokens, END]


def _tokens(match: re.Match[str], before: list[Token]) -> list[Token]:
    kind, text = match.lastgroup, match[0]
    if kind == "number":
        return [Token("number", text.replace(",", ""))]
    if kind == "operator":
        return [Token("operator", _OPERATORS.get(text, text))]
    if kind == "command":
        return [_command(text[1:])]
    follows_value = bool(before) and (
        before[-1].kind in ("number", "text") or before[-1].text in (")", "}", "/", "pi", "mu")
    )
    if kind == "word":
        return list(_word(text, follows_value))
    content = match["style"].strip(" ~")
    if follows_value and is_unit(content):
        return [Token("text", content)]
    return _styled(text, content)


def _command(name: str) -> Token:
    name = ONE_FOR.get(name, name)
    if name in _JOINING:
        return Token("separator", name)
    if name in ("{", "}"):
        return Token("operator", f"{name}set")
    is_operator = name in ("{set", "}set", *"<>|()[]:%_&")
    return Token("operator" if is_operator else "command", name)


def _known_word(word: str) -> Token | None:
    """A word that means a separator, a name of mathematics, percent or degrees."""
    lower = word.lower().strip(".")
    if lower.strip(", ") in _JOINING:
        return Token("separator", lower.strip(", "))
    if word in PLAIN_WORDS or word in PLAIN_GREEK:
        return _command(word)
    if lower in PERCENT_WORDS:
        return Token("operator", "%")
    return Token("command", "degree") if lower in DEGREE_WORDS else None


@functools.lru_cache(maxsize=1024)
def _word(word: str, follows_value: bool) -> tuple[Token, ...]:
    """Tokens of letters without a backslash: a name, a unit, a word or a product of letters."""
    if len(word) == 1:
        return (Token("letter", word),)
    if known := _known_word(word):
        return (known,)
    if word in _SIGNS and follows_value:
        return (Token("operator", _SIGNS[word]),)
    if word.lower() in HEDGES or (len(word) > 2 and word.lower() in FRAME):
        return (Token("text", word),)
    # Long enough, with a vowel, and not in capitals: a word rather than a product.
    is_english = len(word) >= 4 and _VOWEL.search(word) and word[1:].islower()
    if is_english or (follows_value and is_unit(word)):
        return (Token("text", word),)
    name = next((n for n in _LONGEST_FIRST if word.startswith(n) and len(word) - len(n) <= 2), "")
    letters = tuple(Token("letter", letter) for letter in word[len(name) :])
    return (Token("command", name), *letters) if name else letters


_LONGEST_FIRST = sorted(FUNCTIONS, key=len, reverse=True)


def _styled(whole: str, content: str) -> list[Token]:
    r"""Tokens of `\text{…}` and its like."""
    inside = content.strip()
    if not inside or inside in (",", ";"):
        return [Token("separator", inside)] if inside else []
    if inside == "to":
        return [Token("operator", ":")]
    if whole.startswith("\\operatorname") and inside in FUNCTIONS:
        return [Token("command", inside)]
    if known := _known_word(inside):
        return [known]
    if choice := _CHOICE.fullmatch(inside):
        is_set = whole.startswith("\\mathbb")
        return [Token("command", f"mathbb{choice[1]}") if is_set else Token("letter", choice[1])]
    if _COMPOSITE.search(inside):
        return tokenize(inside)[:-1]
    return [Token("text", inside)]
