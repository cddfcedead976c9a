"""The commands that the documentation shows.

A fenced block marked `sh` is commands; one marked `console` has them after `$ `, and what they
print. A comment right above a block says how it differs: `<!-- not run: why -->` for what a test
machine cannot do, `<!-- exits 2 -->` for a command that shows a failure (make makes 1 a 2).
"""

import dataclasses
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

_BLOCK = re.compile(
    r"(?:^ *<!-- (?P<note>not run: .+?|exits \d+) -->\n+)?"
    r"^ *```(?P<kind>sh|console)\n(?P<text>.*?)^ *```",
    re.DOTALL | re.MULTILINE,
)


@dataclasses.dataclass(frozen=True)
class Block:
    """One block of commands.

    Attributes:
        script: shell text without what it prints; '' where a block shows output alone.
        not_run: why no test runs it, '' if one does.
        exit_code: of its last command.
    """

    script: str
    not_run: str
    exit_code: int


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks of a page, in order."""
    for found in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        note, text = found["note"] or "", textwrap.dedent(found["text"])
        yield Block(
            script=text if found["kind"] == "sh" else _typed(text),
            not_run=note.removeprefix("not run: ") if note.startswith("not run: ") else "",
            exit_code=int(note.removeprefix("exits ")) if note.startswith("exits ") else 0,
        )


def _typed(console: str) -> str:
    return "".join(f"{line[2:]}\n" for line in console.splitlines() if line.startswith("$ "))
