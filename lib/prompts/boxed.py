"""Formats whose answer is the last `\\boxed{}` of a free text."""

import dataclasses
import re

from lib.prompts.base import Message, Parsed, conversation
from lib.prompts.layouts import PLAIN, Layout, chat_template

_BRACE = re.compile(r"(?P<box>\\(?:boxed|fbox|framebox)\s*\{)|\\.|[{}]", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Box:
    """Where a `\\boxed{…}` is in a text: [start, end), and what is in it."""

    start: int
    end: int
    content: str


def last_box(text: str) -> Box | None:
    """The last `\\boxed{…}` (or `\\fbox{…}`, `\\framebox{…}`) whose braces are balanced.

    Nested braces belong to the content, escaped ones count as text; of a box in a box the outer one
    counts. One pass: no text, however hostile, takes more than time linear in its length.
    """
    last = None
    open_braces: list[re.Match[str]] = []
    for brace in _BRACE.finditer(text):
        if brace["box"] or brace.group() == "{":
            open_braces.append(brace)
        elif brace.group() == "}" and open_braces:
            opened = open_braces.pop()
            if opened["box"]:
                content = text[opened.end() : brace.start()].strip()
                last = Box(opened.start(), brace.end(), content)
    return last


@dataclasses.dataclass(frozen=True)
class BoxedFormat:
    """Free working that ends in `\\boxed{answer}`.

    Attributes:
        layout: how turns become text.
        instructions: system prompt that explains the format in our words, '' for none.
    """

    name: str
    instructions: str = ""
    layout: Layout = PLAIN

    marks: tuple[str, ...] = ()
    stop_strings: tuple[str, ...] = ()

    @property
    def chat_template(self) -> str:
        return chat_template(self.layout)

    def prompt(self, problem: str, *, system: str) -> list[Message]:
        return conversation(problem, system=system)

    def target(self, *, solution: str, reference: str) -> str:
        """The working, and a box on a line of its own unless the working already ends in one."""
        working = solution.strip()
        box = last_box(working)
        if box and box.content == reference:
            return working
        return f"{working}\n\\boxed{{{reference}}}".lstrip()

    def parse(self, completion: str) -> Parsed:
        """`format_ok`: there is a box, and it is not empty."""
        box = last_box(completion)
        if box is None:
            return Parsed(reasoning=completion.strip() or None, answer=None, format_ok=False)
        before, after = completion[: box.start], completion[box.end :]
        stands_alone = not after.strip() and (not before or before.endswith("\n"))
        working = before if stands_alone else completion
        return Parsed(
            reasoning=working.strip() or None, answer=box.content, format_ok=bool(box.content)
        )
