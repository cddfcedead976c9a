"""Read the option that a text chooses, or its last number, as the MMLU and GSM8K tasks do."""

import re

from reckon_verifier.formula import END, REACH, final, sentence_before, spoken

_LETTER_AFTER_CUE = re.compile(
    r"(?:answer|(?:correct|right|best) (?:choice|option))[*_]*\s*(?:is|are|:|=)?\s*:?\s*"
    r"(?:(?:option|choice)\s*)?"
    r"(?:\$?\\boxed\{)?(?:\\text(?:bf)?\{)?[(\[*\"'$]*([A-D])(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_OTHER_LETTER = re.compile(r"(?<![A-Za-z])[A-D](?![A-Za-z])(?!(?<=A) [a-z])")
_BOXED_LETTER = re.compile(r"\\boxed\{\s*(?:\\text(?:bf|rm)?\{)?\s*\(?([A-D])\)?\s*\}")
_BARE_LETTER = re.compile(r"[\s(\[*\"'$]*([A-D])[\s)\].:*\"'$]*")
_LEADING_LETTER = re.compile(r"[\s(\[*]*([A-D])[)\].:*]")
_PLAIN_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])[-+]?\.\d+"
)


def parse_mmlu_letter(text: str) -> str | None:
    """Return the option that `text` chooses, "A" to "D", or None if it chooses none.

    Tried in this order: the last box with a letter; the last letter after "answer" or "correct
    option" ("The correct answer is B."), none if its sentence has "not" before it or another letter
    after it; a text of one letter; a letter at the beginning ("B) because …"). Any other letter
    inside a sentence is no choice: "A" is also an article.
    """
    if boxed := final(_BOXED_LETTER, text):
        return boxed[1]
    # cue[1] is the letter. The pattern ignores case, and "a" is mostly an article.
    cues = [cue for cue in _LETTER_AFTER_CUE.finditer(text) if cue[1].isupper()]
    if cues:
        cue = cues[-1]
        after = END.split(text[cue.end() : cue.end() + REACH])[0]
        others = {*_OTHER_LETTER.findall(after)} - {cue[1]}
        is_denied = "not" in spoken(sentence_before(text, cue.start()))
        return None if others or is_denied else cue[1]
    alone = _BARE_LETTER.fullmatch(text) or _LEADING_LETTER.match(text)
    return alone[1] if alone else None


def parse_gsm8k_number(text: str) -> str | None:
    """Return the last number in `text` without thousands separators ("72", "-1234.5"), or None.

    A digit inside a word ("R2D2") is no number, and a full stop after one is no decimal point.
    """
    last = final(_PLAIN_NUMBER, text)
    return last[0].replace(",", "").lstrip("+") if last else None
