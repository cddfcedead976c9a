"""Format numbers, tables, untrusted text and templates for the report and the terminal.

Completions are untrusted: they may hold markup, terminal codes, characters that reverse the
direction of a line, or a megabyte of one word.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import jinja2

from lib.core.errors import shorten, visible
from lib.stats import Estimate, share_interval

MISSING = "–"
TEMPLATES = Path(__file__).with_name("templates")
Printed = TypeVar("Printed")
"""What a formatter returns: one text, or the pair of `rate_parts`."""

MOST_CHARACTERS = 120
"""Characters of a table's cell in the terminal."""

_MARKUP = re.compile(
    r"[\\`*\[\]|~$#]"  # always markup
    r"|(?<!\w)_|_(?!\w)"  # emphasis at the edge of a word, not inside one
    r"|<(?=[A-Za-z/!?])|&(?=#?\w+;)"  # a tag, an entity; not "p < 0.05"
)


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of text whose first column names the rows.

    Attributes:
        strong: indices of the rows printed bold.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: frozenset[int] = frozenset()


def rate_parts(
    value: float | None, se: float | None = None, n: float | None = None
) -> tuple[str, str]:
    """Format a rate in percent and its error: 0.616, 0.022 → "61.6", "± 2.2" points.

    If the error rounds to 0.0 (all `n` problems are right, or all wrong), a bound of the 95 %
    interval replaces it: "100.0", "(≥ 99.1)".

    Args:
        value: the rate in [0, 1]; None prints as "–".
        se: its standard error; None if unknown.
        n: number of problems.
    """
    if value is None:
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
    """Join `rate_parts`: "61.6 ± 2.2"."""
    return " ".join(filter(None, rate_parts(value, se, n)))


def decimal(
    value: float | None, se: float | None = None, n: float | None = None, *, digits: int = 2
) -> str:
    """Format a number with its standard error: 3.14159, 0.02 → "3.14 ± 0.02"; "–" without a number.

    An error that is unknown, or would be printed as 0, is left out. `n`, the number of problems, is
    not printed: every formatter of a `cell` gets it.
    """
    if value is None:
        return MISSING
    error = f" ± {se:.{digits}f}" if se and round(se, digits) > 0 else ""
    return f"{value:.{digits}f}{error}"


def cell(numbers: Mapping[str, float], name: str, form: Callable[..., Printed]) -> Printed:
    """Format the number `name` of a mode's metrics by `form`(number, standard error, problems)."""
    return form(numbers.get(name), numbers.get(f"{name}_se"), numbers.get("n"))


def points(value: float) -> str:
    """Format a difference of rates in percentage points, signed: 0.306 → "+30.6"."""
    if math.isnan(value):
        return MISSING
    return f"{100 * value:+.1f}".replace("-", "−")


def p_value(value: float, *, digits: int = 4) -> str:
    """Format a p-value for a sentence, never as 0: "= 0.0321", "< 0.0001"."""
    smallest = 10**-digits
    return f"< {smallest:.{digits}f}" if value < smallest else f"= {value:.{digits}f}"


def markdown_inline(text: str, *, limit: int = 200) -> str:
    """Return `text` on one line, with all Markdown and HTML markup escaped.

    "*a* <b>" -> "\\*a\\* \\<b>"
    """
    return _MARKUP.sub(r"\\\g<0>", " ".join(visible(shorten(text, limit)).split()))


def markdown_block(text: str, *, limit: int = 2000) -> str:
    """Return `text` as a fenced block; the fence is longer than any run of backticks in it."""
    content = visible(shorten(text, limit))
    # CommonMark: only a run of at least as many backticks closes a fence. The 0 is for a text
    # without backticks, since `max` needs two numbers.
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", content)), 0)
    return f"{fence}text\n{content}\n{fence}"


def markdown_table(table: Table) -> str:
    """Format a Markdown pipe table: first column left-aligned, others right, strong rows bold."""
    header = [markdown_inline(text) for text in table.header]
    ruler = [":--", *("--:" for _ in header[1:])]
    body = []
    for index, row in enumerate(table.rows):
        bold = "**" if index in table.strong else ""
        body.append([f"{bold}{markdown_inline(text)}{bold}" for text in row])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ruler, *body))


def table_lines(table: Table) -> Iterator[str]:
    """Yield the title and a line per row for a terminal: columns padded to equal width.

    The first column is left-aligned, the others right-aligned.
    """
    rows = [
        [visible(shorten(text, MOST_CHARACTERS)) for text in row]
        for row in (table.header, *table.rows)
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield table.title
    for first, *others in rows:
        cells = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        # README quotes these lines, and git complains about trailing spaces.
        yield "  ".join([first.ljust(widths[0]), *cells]).rstrip()


def alarm_lines(sentences: Iterable[str]) -> Iterator[str]:
    """Format important sentences, in red on a terminal with colours."""
    for sentence in sentences:
        yield click.style(f"!!! {sentence}", fg="red", bold=True)


def render_template(name: str, **values: Any) -> str:
    """Return a template's text with `values` filled in; HTML templates escape them.

    Args:
        name: a file in `TEMPLATES`; a template includes other files with `source(name)`.
        values: the template's variables; an undefined variable is an error.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        # Only HTML: Markdown templates escape with `markdown_inline` and `markdown_block`.
        autoescape=jinja2.select_autoescape(["html.j2"]),
        # A misspelt variable is an error instead of an empty string.
        undefined=jinja2.StrictUndefined,
        # A line with only a `{% … %}` leaves no line in the result.
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name).render(**values, source=source)


def source(name: str) -> str:
    """Return the text of a file in `TEMPLATES` as it is."""
    return (TEMPLATES / name).read_text(encoding="utf-8")
