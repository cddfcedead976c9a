"""What a prompt format is.

Prompts are chat messages, and a format brings the Jinja template that turns them into text. The
template is saved with the tokenizer, so that training, evaluation, serving and a user's own code
render one and the same prompt. In every template the rendered prompt is a prefix of the rendered
prompt plus answer, which is what training on completions only needs.
"""

import dataclasses
from typing import Protocol

Message = dict[str, str]
"""One chat turn: {"role": "system" | "user" | "assistant", "content": text}."""


@dataclasses.dataclass(frozen=True)
class Parsed:
    """What a format finds in one completion.

    Attributes:
        reasoning: the working, None where the format's marks for it are missing.
        answer: the answer between its marks (the last such pair), None where there is none.
        format_ok: the completion as a whole has the required form, each mark once, in order.
    """

    reasoning: str | None
    answer: str | None
    format_ok: bool


class PromptFormat(Protocol):
    """Renders problems and worked solutions, and reads completions back."""

    @property
    def name(self) -> str:
        """As written in params, `prompt.format`."""
        ...

    @property
    def chat_template(self) -> str:
        """Jinja source, saved with the tokenizer."""
        ...

    @property
    def marks(self) -> tuple[str, ...]:
        """Tags of this format; a tokenizer trained here keeps each as one token."""
        ...

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Generation ends after any of these and keeps it; empty: only EOS ends it."""
        ...

    @property
    def instructions(self) -> str:
        """System prompt that explains the format; '' where the template does, or none is due."""
        ...

    def prompt(self, problem: str, *, system: str) -> list[Message]:
        """Chat messages that ask for `problem`; no system message where `system` is ''."""
        ...

    def target(self, *, solution: str, reference: str) -> str:
        """The completion that SFT teaches: working (may be '') and answer, without EOS."""
        ...

    def parse(self, completion: str) -> Parsed:
        """Read one completion; never raises, whatever the text."""
        ...


def conversation(problem: str, *, system: str) -> list[Message]:
    """One question, after `system` where that is not ''."""
    first = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": problem}]
