"""Answers of fixed shape: a letter of multiple choice, the last number of a text."""

import re

_LETTER_AFTER_CUE = re.compile(
    r"(?:answer|choice|option)\s*(?:is|are|:|=)?\s*:?\s*"
    r"(?:\$?\\boxed\{)?(?:\\text(?:bf)?\{)?[(\[*\"'$]*([A-D])(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_BOXED_LETTER = re.compile(r"\\boxed\{\s*(?:\\text(?:bf|rm)?\{)?\s*\(?([A-D])\)?\s*\}")
_BARE_LETTER = re.compile(r"[\s(\[*\"'$]*([A-D])[\s)\].:*\"'$]*")
_LEADING_LETTER = re.compile(r"[\s(\[*]*([A-D])[)\].:*]")
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])[-+]?\.\d+"
)


def parse_mmlu_letter(text: str) -> str | None:
    """The option that `text` chooses, "A" to "D", or None where it chooses none.

    In this order: the last box that holds a letter, the last letter after "answer", "choice" or
    "option" ("The correct answer is B."), a text that is nothing but a letter, a letter with
    which the text begins ("B) because …"). A letter inside a sentence is no choice: "A" is also
    an article.
    """
    for pattern in (_BOXED_LETTER, _LETTER_AFTER_CUE):
        found = pattern.findall(text)
        capital = [letter for letter in found if letter.isupper()]
        if capital:
            return str(capital[-1])
    alone = _BARE_LETTER.fullmatch(text) or _LEADING_LETTER.match(text)
    return alone[1] if alone else None


def parse_gsm8k_number(text: str) -> str | None:
    """The last number in `text` without thousands separators ("72", "-1234.5"), None without one.

    A digit inside a word ("R2D2") is no number, and a full stop after one is no decimal point.
    """
    last = None
    for found in _NUMBER.finditer(text):
        last = found[0]
    return last.replace(",", "").lstrip("+") if last else None
