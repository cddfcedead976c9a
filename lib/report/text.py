"""Numbers and foreign text as the report prints them.

Completions are text that nobody wrote with care: they may hold markup, terminal codes, characters
that turn the direction of a line, or a megabyte of one word.
"""

import math
import re
import unicodedata

MISSING = "–"
_MARKUP = re.compile(
    r"[\\`*\[\]|~$#]"  # always markup
    r"|(?<!\w)_|_(?!\w)"  # emphasis at the edge of a word, not inside one
    r"|<(?=[A-Za-z/!?])|&(?=#?\w+;)"  # a tag, an entity; not "p < 0.05"
)
_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}


def percent(value: float | None, se: float | None = None) -> str:
    """A rate in percent with its standard error in points: 0.616, 0.022 → "61.6 ± 2.2"."""
    return decimal(_scaled(value), _scaled(se), digits=1)


def decimal(value: float | None, se: float | None = None, *, digits: int = 2) -> str:
    """A number with its standard error, "–" where there is none."""
    if value is None or math.isnan(value):
        return MISSING
    error = "" if se is None or math.isnan(se) else f" ± {se:.{digits}f}"
    return f"{value:.{digits}f}{error}"


def points(value: float) -> str:
    """A difference of rates in percentage points, signed: 0.306 → "+30.6"."""
    if math.isnan(value):
        return MISSING
    return f"{100 * value:+.1f}".replace("-", "−").replace("inf", "∞")


def p_value(value: float) -> str:
    """A p-value as it is printed: never 0."""
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


def visible(text: str) -> str:
    """`text` with every invisible character written out.

    Line feeds and tabs stay; other control, format (among them those that turn the direction of
    a line), surrogate and private characters become "⟨U+202E⟩".
    """
    return "".join(_visible_character(character) for character in text)


def _visible_character(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in _HIDDEN:
        return character
    return f"⟨U+{ord(character):04X}⟩"


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters of `text`, and how many were left out."""
    left_out = len(text) - limit
    return text if left_out <= 0 else f"{text[:limit]} … ({left_out:,} more characters)"


def markdown_inline(text: str, *, limit: int = 200) -> str:
    """`text` on one line, with everything that Markdown or HTML reads as markup escaped."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(visible(shortened(text, limit)).split()))


def markdown_block(text: str, *, limit: int = 2000) -> str:
    """`text` as a fenced block, whose fence is longer than any run of backticks in it."""
    shown = visible(shortened(text, limit))
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{shown}\n{fence}"


def _scaled(value: float | None) -> float | None:
    return None if value is None else 100 * value
