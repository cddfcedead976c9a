"""Tells words from mathematics."""

import re

from lib.verifier.vocabulary import PLAIN_GREEK, PLAIN_WORDS

_FORMATTED = re.compile(r"\\(?:text|mbox|textbf|textit|mathrm|operatorname)\s*\{[^{}]*\}")
_COMMAND = re.compile(r"\\(?:begin|end)\s*\{\w+\*?\}|\\[A-Za-z]+")
_WORD = re.compile(r"[^\W\d_\u2e80-\U0010ffff]{2,}|[\u2e80-\U0010ffff]+")
_MATHS = PLAIN_WORDS | PLAIN_GREEK | {"and", "or", "det", "mod", "none", "union", "emptyset"}


_SHORT = frozenset(
    ["is", "it", "of", "to", "so", "we", "be", "in", "as", "if", "no", "on", "an", "by", "at", "il"]
)
_CODE = re.compile(r"[A-Za-z_]{2,}\(|</?\w+>|__|\w\.\w+\(")


def has_prose(text: str) -> bool:
    """Whether `text` is natural language: two words at least, and no program code or tags."""
    words = _words(text)
    enough = len(words) >= 2 or any(map(_is_eastern, words))
    return enough and not _CODE.search(text[:4000])


def has_words(text: str) -> bool:
    """Whether `text` holds a word that is neither mathematics nor marked as text."""
    return bool(_words(text))


def _words(text: str) -> list[str]:
    bare = _COMMAND.sub(" ", _FORMATTED.sub(" ", text[:4000]))
    words = [word for word in _WORD.findall(bare) if word.lower() not in _MATHS]
    return [word for word in words if len(word) > 2 or word.lower() in _SHORT or _is_eastern(word)]


def _is_eastern(word: str) -> bool:
    """Written without spaces, so that one run of letters may be a sentence."""
    return ord(word[0]) >= 0x2E80
