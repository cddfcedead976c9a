"""The last `\\boxed{…}` of a text: its place and its content."""

import dataclasses
import re

# Matches `\boxed{`, an escaped character such as `\{` or `\\`, or a single brace. An escaped brace
# is matched with its backslash, so that it does not count as a brace.
_BRACE = re.compile(r"(?P<box>\\(?:boxed|fbox|framebox)\s*\{)|\\.|[{}]", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Box:
    """A `\\boxed{…}` found in a text: its place, text[start:end], and its stripped content."""

    start: int
    end: int
    content: str


def last_box(text: str) -> Box | None:
    """Return the last `\\boxed{…}` (or `\\fbox{…}`, `\\framebox{…}`) with balanced braces.

    Nested braces belong to the content: `so \\boxed{\\frac{1}{2}}.` gives the content
    `\\frac{1}{2}`. Escaped braces are text. Of a box inside a box, the outer one counts. Returns
    None if no box is closed. One pass: linear time on any text.
    """
    last = None
    # A stack of the braces that are still open.
    open_braces: list[re.Match[str]] = []
    for match in _BRACE.finditer(text):
        if match["box"] or match.group() == "{":
            open_braces.append(match)
        elif match.group() == "}" and open_braces:
            opening = open_braces.pop()
            if opening["box"]:
                # Replaced by each box that ends later: an outer box, or the next one.
                content = text[opening.end() : match.start()].strip()
                last = Box(opening.start(), match.end(), content)
    return last
