"""Where a source's text keeps the answer: after `####`, or in the last `\\boxed{}`."""

import dataclasses
import re

from lib.prompts.boxed import last_box

_FINAL = re.compile(r"####[ \t]*(?P<answer>[^\n#]*)\Z")
_CALCULATOR = re.compile(r"<<[^<>\n]*>>")
_NUMBER = re.compile(r"\$?(?P<sign>[-+−]?)\$?(?P<digits>(?:\d[\d,]*)?(?:\.\d+)?)\.?")
_DELIMITERS = re.compile(r"\\[\[\]()]|[$.\s]")
_LATEX = re.compile(r"\\[a-zA-Z]+(?:\{[^{}]*\})?")
_PROSE = re.compile(r"(?:\b[^\W\d_]{2,}[,;:]?\s+){3}[^\W\d_]{2,}")

BARE_LENGTH = 200
"""Characters of the longest text that can pass for a bare answer."""


@dataclasses.dataclass(frozen=True)
class Worked:
    """A text split into answer and working; `solution` is '' where the text is the answer alone."""

    reference: str
    solution: str


def read_worked(text: str) -> Worked | None:
    """Split a text that ends in `#### N` or holds a `\\boxed{}`; None where it does neither.

    GSM8K's calculator marks (`<<48/2=24>>`) go, and so does its last line; MATH's working keeps
    its box.
    """
    if final := _FINAL.search(text.rstrip()):
        solution = _CALCULATOR.sub("", text[: final.start()]).strip()
        answer = final["answer"].strip()
        return Worked(plain_number(answer), solution) if answer else None
    box = last_box(text)
    if box is None or not box.content:
        return None
    around = text[: box.start] + text[box.end :]
    only_box = not _DELIMITERS.sub("", around)
    return Worked(box.content, "" if only_box else text.strip())


def plain_number(text: str) -> str:
    """A number without currency sign and thousands separators; any other text as it is.

    `$1,234.50` becomes `1234.50`, `-7` stays.
    """
    number = _NUMBER.fullmatch(text.strip())
    if not number or not number["digits"]:
        return text.strip()
    sign = "-" if number["sign"] in ("-", "−") else ""
    return sign + number["digits"].replace(",", "")


def is_bare(text: str) -> bool:
    """Whether a text can only be an answer: one short line without four words in a row."""
    line = text.strip()
    if "\n" in line or len(line) > BARE_LENGTH:
        return False
    return not _PROSE.search(_LATEX.sub(" ", line))
