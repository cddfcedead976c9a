"""Numbers, tables, foreign text and templates as the report and the terminal print them.

Completions are text that nobody wrote with care: they may hold markup, terminal codes, characters
that turn the direction of a line, or a megabyte of one word.
"""

import dataclasses
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import jinja2

from lib.stats import Estimate, share_interval

MISSING = "–"
TEMPLATES = Path(__file__).with_name("templates")
Printed = TypeVar("Printed")
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


def rate_parts(
    value: float | None, se: float | None = None, n: float | None = None
) -> tuple[str, str]:
    """A rate in percent, and how sure it is: 0.616, 0.022 → "61.6", "± 2.2" points.

    Where the error would be printed as 0.0, of `n` problems that are all alike, the end of the
    95 % interval stands in its place: "100.0", "(≥ 99.1)".
    """
    if value is None or math.isnan(value):
        return MISSING, ""
    number = f"{100 * value:.1f}"
    if se is not None and round(100 * se, 1) > 0:
        return number, f"± {100 * se:.1f}"
    if se is None or n is None:
        return number, ""
    interval = share_interval(Estimate(value, se, int(n)))
    bound = f"≤ {100 * interval.high:.1f}" if value < 0.5 else f"≥ {100 * interval.low:.1f}"
    return number, f"({bound})"


def percent(value: float | None, se: float | None = None, n: float | None = None) -> str:
    """`rate_parts` in one: "61.6 ± 2.2"."""
    return " ".join(filter(None, rate_parts(value, se, n)))


def decimal(
    value: float | None, se: float | None = None, n: float | None = None, *, digits: int = 2
) -> str:
    """A number with its standard error, "–" where there is none; no error that rounds to 0."""
    if value is None or math.isnan(value):
        return MISSING
    error = "" if se is None or not round(se, digits) > 0 else f" ± {se:.{digits}f}"
    return f"{value:.{digits}f}{error}"


def cell(numbers: Mapping[str, float], name: str, form: Callable[..., Printed]) -> Printed:
    """One number of a mode's metrics with its error and its number of problems."""
    return form(numbers.get(name), numbers.get(f"{name}_se"), numbers.get("n"))


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


def render(name: str, **values: Any) -> str:
    """Fill a template; in one that makes HTML, values are escaped.

    Args:
        name: of a file in `TEMPLATES`, whose other files a template reads by `source(name)`.
        values: what the template may use; a name it does not find is an error.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name).render(**values, source=source)


def source(name: str) -> str:
    """The text of a file of `TEMPLATES`, as it stands."""
    return (TEMPLATES / name).read_text(encoding="utf-8")
