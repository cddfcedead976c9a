"""Formats that put working and answer between tags."""

import dataclasses
import re
from functools import cached_property

from lib.prompts.base import Message, Parsed, conversation
from lib.prompts.layouts import PLAIN, Layout, chat_template


@dataclasses.dataclass(frozen=True)
class TaggedFormat:
    """`<working>…</working><answer>…</answer>` with tags of choice.

    Attributes:
        working: opening and closing tag of the working.
        answer: opening and closing tag of the answer.
        opened_by_prompt: the prompt ends with the opening tag, so completions start inside it.
        separator: text that targets put around working and answer, inside and between the tags.
        between: text between the two blocks, in targets and as `format_ok` demands it; None:
            targets put `separator` there and `format_ok` allows any white space.
        opens_with: text between an opening tag that the prompt ends in and the working.
        stop_strings: see `PromptFormat`.
        layout: how turns become text; one with a preamble explains the format itself.
    """

    name: str
    working: tuple[str, str]
    answer: tuple[str, str]
    opened_by_prompt: bool
    separator: str = ""
    between: str | None = None
    opens_with: str = ""
    stop_strings: tuple[str, ...] = ()
    layout: Layout = PLAIN

    @property
    def marks(self) -> tuple[str, ...]:
        return (*self.working, *self.answer)

    @property
    def chat_template(self) -> str:
        return chat_template(self.layout, opening=self.working[0] if self.opened_by_prompt else "")

    @property
    def instructions(self) -> str:
        if self.layout.preamble:
            return ""
        return (
            f"Work through the problem between {self.working[0]} and {self.working[1]}. "
            f"Then give the answer alone between {self.answer[0]} and {self.answer[1]}."
        )

    def prompt(self, problem: str, *, system: str) -> list[Message]:
        return conversation(problem, system=system)

    def target(self, *, solution: str, reference: str) -> str:
        gap = self.separator
        opening = self.opens_with if self.opened_by_prompt else f"{self.working[0]}{gap}"
        between = gap if self.between is None else self.between
        working = f"{solution.strip()}{gap}{self.working[1]}{between}"
        return f"{opening}{working}{self.answer[0]}{gap}{reference}{gap}{self.answer[1]}{gap}"

    def parse(self, completion: str) -> Parsed:
        required = self.marks[1:] if self.opened_by_prompt else self.marks
        once = all(completion.count(mark) == 1 for mark in required)
        unopened = not self.opened_by_prompt or self.working[0] not in completion
        # Only then: where a mark is repeated, the pattern takes time quadratic in the text.
        complete = once and unopened and self._whole.fullmatch(completion)
        return Parsed(
            reasoning=self._reasoning(completion),
            answer=self._answer(completion),
            format_ok=bool(complete),
        )

    @cached_property
    def _whole(self) -> re.Pattern[str]:
        """Working, then answer, nothing before and only white space after."""
        tags = [re.escape(mark) for mark in self.marks]
        opening = "" if self.opened_by_prompt else rf"\s*{tags[0]}"
        between = r"\s*" if self.between is None else re.escape(self.between)
        return re.compile(rf"{opening}.*?{tags[1]}{between}{tags[2]}.*?{tags[3]}\s*", re.DOTALL)

    def _reasoning(self, completion: str) -> str | None:
        before, closed, _ = completion.partition(self.working[1])
        _, opened, after = before.partition(self.working[0])
        if not closed or not (opened or self.opened_by_prompt):
            return None
        return (after if opened else before).strip()

    def _answer(self, completion: str) -> str | None:
        before, closed, _ = completion.rpartition(self.answer[1])
        _, opened, answer = before.rpartition(self.answer[0])
        return answer.strip() if closed and opened else None
