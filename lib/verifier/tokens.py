"""Splits a normalized answer into tokens."""

import functools
import re
from typing import NamedTuple

from lib.verifier import units
from lib.verifier.limits import MAX_TOKENS
from lib.verifier.tree import TooHard, Unparsable
from lib.verifier.vocabulary import (
    DEGREE_WORDS,
    FUNCTIONS,
    ONE_FOR,
    PERCENT_WORDS,
    PLAIN_GREEK,
    PLAIN_WORDS,
    STYLES,
)


class Token(NamedTuple):
    """One token.

    Attributes:
        kind: "number", "letter", "command", "text", "separator", "operator" or "end".
        text: what it says; of a command the name without backslash.
        spaced: white space stands before it.
    """

    kind: str
    text: str
    spaced: bool = False


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
_READINGS = {
    True: re.compile(_PATTERN.replace("GROUPED", _GROUPED)),
    False: re.compile(_PATTERN.replace("GROUPED", "")),
}
_DEPTH = {"(": 1, "[": 1, "{set": 1, ")": -1, "]": -1, "}set": -1}
_COMPOSITE = re.compile(r"[\d\\,;]|\b(?:and|or)\b")
_CHOICE = re.compile(r"[\s(\[]*([A-Za-z])[\s)\].:]*")
_JOINING = {"and": "and", "or": "or", ",": ",", ";": ";"}
_OPERATORS = {"**": "^", "<=": "le", ">=": "ge", "!=": "ne", "==": "=", ":=": "=", "=>": "ge"}


def tokenize(text: str, *, grouped: bool = True) -> list[Token]:
    """Tokens of `text`, the last one of kind "end".

    Args:
        text: an answer, normalized.
        grouped: read "1,234" as one number, except between brackets, where a comma more often
            separates; else as a list of two everywhere.

    Raises:
        Unparsable: a character that is no part of mathematics.
        TooHard: more than `MAX_TOKENS`.
    """
    pattern = _READINGS[grouped]
    tokens: list[Token] = []
    position, spaced, brackets = 0, False, 0
    while position < len(text):
        match = pattern.match(text, position)
        if match is None:
            raise Unparsable(f"unexpected {text[position]!r}")
        if brackets and match.lastgroup == "number" and "," in match[0]:
            match = _READINGS[False].match(text, position) or match
        position = match.end()
        if match.lastgroup == "space":
            spaced = True
            continue
        new = _tokens(match, spaced, tokens, grouped)
        brackets += sum(_DEPTH.get(token.text, 0) for token in new)
        tokens.extend(new)
        spaced = False
        if len(tokens) > MAX_TOKENS:
            raise TooHard(f"more than {MAX_TOKENS} tokens")
    tokens.append(END)
    return tokens


def _tokens(match: re.Match[str], spaced: bool, before: list[Token], grouped: bool) -> list[Token]:
    kind, text = match.lastgroup, match[0]
    if kind == "number":
        return [Token("number", text.replace(",", ""), spaced)]
    if kind == "operator":
        return [Token("operator", _OPERATORS.get(text, text), spaced)]
    if kind == "command":
        return [_command(text[1:], spaced)]
    if kind == "word":
        return [first._replace(spaced=spaced) if not number else first
                for number, first in enumerate(_word(text, _follows_value(before)))]  # fmt: skip
    content = match["style"].strip(" ~")
    if _follows_value(before) and units.is_unit(content):
        return [Token("text", content, spaced)]
    return _styled(text, match["style"], spaced, grouped)


def _command(name: str, spaced: bool) -> Token:
    name = ONE_FOR.get(name, name)
    if name in _JOINING:
        return Token("separator", name, spaced)
    if name in ("<", ">", "|", "(", ")", "[", "]", ":", "%", "_", "&"):
        return Token("operator", name, spaced)
    if name in "{}":
        return Token("operator", f"{name}set", spaced)
    if name in ("{set", "}set"):
        return Token("operator", name, spaced)
    if name == "#":
        raise Unparsable("unexpected '\\#'")
    return Token("command", name, spaced)


def _follows_value(before: list[Token]) -> bool:
    return bool(before) and (
        before[-1].kind in ("number", "text") or before[-1].text in (")", "}", "/", "pi", "mu")
    )


@functools.lru_cache(maxsize=1024)
def _word(word: str, follows_value: bool) -> tuple[Token, ...]:
    """Tokens of letters without a backslash: a name, a unit, a word or a product of letters."""
    if len(word) == 1:
        return (Token("letter", word),)
    lower = word.lower()
    if lower in _JOINING:
        return (Token("separator", lower),)
    if word in PLAIN_WORDS or word in PLAIN_GREEK:
        return (_command(word, False),)
    if lower in PERCENT_WORDS:
        return (Token("operator", "%"),)
    if word == "to" and follows_value:
        return (Token("operator", ":"),)
    if lower in DEGREE_WORDS:
        return (Token("command", "degree"),)
    if (follows_value and units.is_unit(word)) or _is_english(word):
        return (Token("text", word),)
    for name in sorted(FUNCTIONS, key=len, reverse=True):
        if word.startswith(name) and len(word) - len(name) <= 2:
            return (Token("command", name), *(Token("letter", c) for c in word[len(name) :]))
    return tuple(Token("letter", letter) for letter in word)


_VOWEL = re.compile("[aeiouyAEIOUY]")


def _is_english(word: str) -> bool:
    """Long enough, with a vowel, and not in capitals: a word rather than a product."""
    return len(word) >= 4 and bool(_VOWEL.search(word)) and word[1:].islower()


def _styled(whole: str, content: str, spaced: bool, grouped: bool) -> list[Token]:
    """Tokens of `\\text{…}` and its like."""
    inside = content.strip()
    joining = inside.strip(", ").lower()
    if joining in _JOINING:
        return [Token("separator", joining, spaced)]
    if inside == "to":
        return [Token("operator", ":", spaced)]
    if not inside or inside in (",", ";"):
        return [Token("separator", inside, spaced)] if inside else []
    if inside in PLAIN_WORDS or inside in PLAIN_GREEK:
        return [_command(inside, spaced)]
    if whole.startswith("\\operatorname") and inside in FUNCTIONS:
        return [Token("command", inside, spaced)]
    if choice := _CHOICE.fullmatch(inside):
        if whole.startswith("\\mathbb"):
            return [Token("command", f"mathbb{choice[1]}", spaced)]
        return [Token("letter", choice[1], spaced)]
    if inside.strip(".").lower() in PERCENT_WORDS:
        return [Token("operator", "%", spaced)]
    if inside.strip(".").lower() in DEGREE_WORDS:
        return [Token("command", "degree", spaced)]
    if _COMPOSITE.search(inside):
        return tokenize(inside, grouped=grouped)[:-1]
    if len(inside) == 2 and inside.isupper() and not whole.startswith("\\text"):
        return [Token("letter", letter, spaced) for letter in inside]
    return [Token("text", inside, spaced)]
