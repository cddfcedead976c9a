"""Words: spelled numbers, counted things, and the words that may or may not be beside an answer."""

import functools
import re
from fractions import Fraction

from lib.verifier.tree import FUNCTIONS, names, pairs

HEDGES = names(
    "not no never nor neither none least most more less fewer than about around nearly almost "
    "roughly approximately approx maybe perhaps possibly probably likely either but except unless "
    "cannot can could may might impossible wrong incorrect false invalid over under up down above "
    "below between half twice double triple squared cubed square cube inverse reciprocal negative "
    "opposite minus plus times divided multiplied added hundred thousand million billion trillion "
    "dozen score other others another different before after previous next without anything "
    "everything something if when while odd even multiple divisor factor factorial mod modulo base "
    "root excluded many few some guess unknown bound exceeds percent percents hundredths tenths "
    "thousandths millionths billionths halves thirds quarters fourths fifths sixths eighths true "
    "all any every each both only lakh crore is are was were and or opposite complement conjugate"
)
"""Words that make another statement of what is beside them; no rule may leave one out."""

FRAME = names(
    "the a an final correct required answer answers result results value values solution "
    "solutions so thus therefore hence then we get have obtain of for to in that it this its our "
    "total number numbers sum product difference ratio area volume perimeter circumference length "
    "width height depth distance radius diameter angle side triangle circle rectangle maximum "
    "minimum max min largest smallest greatest possible probability expected vertex center focus "
    "range domain interval set point points coordinates equation line curve function expression "
    "integer integers remainder cost price time speed age amount measure degree unique such "
    "elements roots zeros ways option choice"
)
"""Words that say what is beside them, without making it another."""


_FIGURE = re.compile(
    r"\b(triangle|quadrilateral|angle|segment|square|rectangle|circle|line) [a-z]{1,4}\b(?! [a-z])"
)


def may_label(label: str, problem: str) -> bool:
    """Return True if a label may go unsaid: words that frame, and words of the problem, but no
    hedge.
    """
    words = _FIGURE.sub(r"\1", label.lower()).split()
    known = set(re.findall(r"[^\W\d_]+", problem.lower()))
    told = [word for word in words if len(word) > 1 and word not in FRAME]
    return not (HEDGES & set(words)) and (set(told) <= known if problem else not told)


_NUMBER_WORDS = pairs(
    "zero=0 one=1 two=2 three=3 four=4 five=5 six=6 seven=7 eight=8 nine=9 ten=10 eleven=11 "
    "twelve=12 thirteen=13 fourteen=14 fifteen=15 sixteen=16 seventeen=17 eighteen=18 nineteen=19 "
    "twenty=20 thirty=30 forty=40 fifty=50 sixty=60 seventy=70 eighty=80 ninety=90"
)
SCALES = {
    "dozen": 12, "hundred": 100, "thousand": 10**3, "lakh": 10**5, "million": 10**6,
    "crore": 10**7, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip
PARTS = pairs(
    "half=2 halves=2 third=3 thirds=3 quarter=4 quarters=4 fourths=4 fifth=5 fifths=5 sixths=6 "
    "eighths=8 tenth=10 tenths=10 hundredths=100 thousandths=1000 millionths=1000000"
)
"""What a number is divided by, by the word after it."""


def is_number_word(word: str) -> bool:
    """Return True if a word is part of a number's name."""
    return word in _NUMBER_WORDS or word in SCALES


def spelled_number(words: list[str], digits: Fraction | None) -> Fraction | None:
    """Return the number that words spell, after digits or not; None where they are several in a
    row.
    """
    total, current = Fraction(0), digits or Fraction(0)
    starts = digits is None
    for word in words:
        if scale := SCALES.get(word):
            current = (Fraction(1) if starts else current) * scale
            if scale > 100:
                total, current = total + current, Fraction(0)
        else:
            value = int(_NUMBER_WORDS[word])
            is_next = not current % (100 if value >= 10 else 10) and current % 100 != 10
            if not starts and not (value and is_next):
                return None
            current += value
        starts = False
    return total + current


_FORMATTED = re.compile(
    r"\\(?:text|mbox|textbf|textit|textrm|mathrm|mathbf|operatorname)\b\s*\{[^{}]*\}"
)
_COMMAND = re.compile(r"\\(?:begin|end)\s*\{\w+\*?\}|\\[A-Za-z]+")
_WORD = re.compile(r"[^\W\d_\u2e80-\U0010ffff]{2,}|[\u2e80-\U0010ffff]+")
_MATHS = FUNCTIONS | names(
    "infty oo inf infinity asin acos atan asinh acosh atanh arcsinh arccosh arctanh ceiling sign "
    " log10 pi theta alpha beta gamma delta lambda omega phi and or det mod none union emptyset"
)
_SHORT = names("is it of to so we be in as if no on an by at il")
_CODE = re.compile(
    r"(?<![\\A-Za-z_])[A-Za-z_]{2,}\(|</?\w+>|__|\w\.\w+\(|\b(?:def|lambda|import|return)\b"
)


def has_prose(text: str) -> bool:
    """Return True if `text` is natural language: two words at least, and no program code or
    tags.
    """
    return _begins_with_prose(text[:4000])


@functools.lru_cache(1024)
def _begins_with_prose(text: str) -> bool:
    words = _words(text)
    enough = len(words) >= 2 or any(map(_is_eastern, words))
    return enough and not _CODE.search(text)


def has_words(text: str) -> bool:
    """Return True if `text` has a word that is neither mathematics nor marked as text."""
    return bool(_words(text))


def _words(text: str) -> list[str]:
    bare = _COMMAND.sub(" ", _FORMATTED.sub(" ", text[:4000]))
    words = [word for word in _WORD.findall(bare) if word.lower() not in _MATHS]
    return [word for word in words if len(word) > 2 or word.lower() in _SHORT or _is_eastern(word)]


def _is_eastern(word: str) -> bool:
    """Return True for a script without spaces, where one run of letters may be a sentence."""
    return ord(word[0]) >= 0x2E80
