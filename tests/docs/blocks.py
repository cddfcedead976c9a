"""Commands in the documentation's fenced blocks.

A fenced block marked `sh` is commands; one marked `console` has them after `$ `, with their
output. A comment right above a block says how it differs: `<!-- not run: why -->` for what a test
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
        script: shell text without its output; '' where a block shows output only.
        not_run: why no test runs it, '' if one does.
        exit_code: of its last command.
    """

    script: str
    not_run: str
    exit_code: int


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page, in order."""
    for match in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        note, text = match["note"] or "", textwrap.dedent(match["text"])
        yield Block(
            script=text if match["kind"] == "sh" else _typed(text),
            not_run=note.removeprefix("not run: ") if note.startswith("not run: ") else "",
            exit_code=int(note.removeprefix("exits ")) if note.startswith("exits ") else 0,
        )


def _typed(console: str) -> str:
    return "".join(f"{line[2:]}\n" for line in console.splitlines() if line.startswith("$ "))
