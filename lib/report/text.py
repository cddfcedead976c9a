"""Numbers, tables and foreign text as the report and the terminal print them.

Completions are text that nobody wrote with care: they may hold markup, terminal codes, characters
that turn the direction of a line, or a megabyte of one word.
"""

import dataclasses
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator

import click

MISSING = "–"
_MARKUP = re.compile(
    r"[\\`*\[\]|~$#]"  # always markup
    r"|(?<!\w)_|_(?!\w)"  # emphasis at the edge of a word, not inside one
    r"|<(?=[A-Za-z/!?])|&(?=#?\w+;)"  # a tag, an entity; not "p < 0.05"
)
_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of text whose first column names the rows.

    Attributes:
        strong: rows that carry the message.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: frozenset[int] = frozenset()


def percent(value: float | None, se: float | None = None) -> str:
    """A rate in percent with its standard error in points: 0.616, 0.022 → "61.6 ± 2.2"."""
    scaled = (None if number is None else 100 * number for number in (value, se))
    return decimal(*scaled, digits=1)


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
    return "".join(
        f"⟨U+{ord(character):04X}⟩"
        if unicodedata.category(character) in _HIDDEN and character not in "\n\t"
        else character
        for character in text
    )


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters of `text`, and how many were left out."""
    left_out = len(text) - limit
    return text if left_out <= 0 else f"{text[:limit]} … ({left_out:,} more characters)"


def markdown_inline(text: str, *, limit: int = 200) -> str:
    """`text` on one line, with everything that Markdown or HTML reads as markup escaped."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(visible(shortened(text, limit)).split()))


def markdown_block(text: str, *, limit: int = 2000) -> str:
    """`text` as a fenced block, whose fence is longer than any run of backticks in it."""
    content = visible(shortened(text, limit))
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", content)), 0)
    return f"{fence}text\n{content}\n{fence}"


def markdown_table(table: Table) -> str:
    """A pipe table, numbers to the right, strong rows bold."""
    header = [markdown_inline(cell) for cell in table.header]
    ruler = [":--", *("--:" for _ in header[1:])]
    body = []
    for number, row in enumerate(table.rows):
        bold = "**" if number in table.strong else ""
        body.append([f"{bold}{markdown_inline(cell)}{bold}" for cell in row])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ruler, *body))


def table_lines(table: Table) -> Iterator[str]:
    """The table for a terminal: aligned columns, numbers to the right."""
    rows = (table.header, *table.rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield table.title
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        yield "  ".join([first.ljust(widths[0]), *cells]).rstrip()


def loud(sentences: Iterable[str]) -> Iterator[str]:
    """Sentences that must not be overlooked: red where the terminal has colours."""
    for sentence in sentences:
        yield click.style(f"!!! {sentence}", fg="red", bold=True)
