"""Prompt formats: how prompts are rendered and completions parsed.

Prompts are chat messages, and each format has a Jinja template to render them as text. The template
is saved with the tokenizer, so training, evaluation, serving and a user's own code render the same
prompt. In every template the rendered prompt is a prefix of the rendered prompt plus answer, as
training on completions only requires.
"""

import dataclasses
import re
from functools import cached_property
from typing import Any

from lib.prompts.boxes import last_box
from lib.prompts.template import OWN, PLAIN, Layout, Message, chat_template


@dataclasses.dataclass(frozen=True)
class ParsedCompletion:
    """The parts of a completion, as its prompt format parses them.

    Attributes:
        reasoning: text of the reasoning; None if its marks are missing.
        answer: text between the answer's last pair of marks, or in the last box; None if there is
            none.
        format_ok: True if the completion has the form that its format's `parse` requires.
    """

    reasoning: str | None
    answer: str | None
    format_ok: bool


def conversation(problem: str, *, system: str) -> list[Message]:
    """Return a prompt as chat messages: the system message unless '', then the problem."""
    first = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": problem}]


class _Judge:
    """The verdict of a format's completions: the maths verifier's, unless a task overrides it."""

    @property
    def is_task(self) -> bool:
        """True if the format decides by itself which completions are right."""
        return type(self).right is not _Judge.right

    def right(self, rollout: Any) -> bool | None:
        """Decide whether a completion, a `lib.rewards.rollout.Rollout`, is right.

        None leaves it to the maths verifier. A subclass in `plugins/tasks` returns a bool, which
        then counts in every reward, rate, curve and report.
        """
        return None


@dataclasses.dataclass(frozen=True)
class TaggedFormat(_Judge):
    """A format with reasoning and answer, each between configurable tags.

    A target of the format `xml`, with `separator` "\\n":

        <reasoning>\\n18 + 54 = 72\\n</reasoning>\\n<answer>\\n72\\n</answer>\\n

    Attributes:
        working: opening and closing tag of the reasoning.
        answer: opening and closing tag of the answer.
        opened_by_prompt: True if the prompt ends with the reasoning's opening tag.
        separator: text in targets around reasoning and answer, inside and between the tags.
        between: required text between the two blocks. None: targets have `separator` there, and
            `format_ok` allows any white space.
        opens_with: start of targets if the prompt has the opening tag.
        stop_strings: generation ends after any of these and keeps it; if empty, only EOS ends it.
        layout: the text around turns; one with a preamble explains the format itself.
        wording: the format's own system prompt; `{0}` to `{3}` are replaced by the marks.
        tool: the tool of completions (`prompt.tool`); '' for none.
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
    wording: str = ""
    tool: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """The four tags: reasoning open, reasoning close, answer open, answer close.

        A tokenizer trained here keeps each as one token.
        """
        return (*self.working, *self.answer)

    @property
    def chat_template(self) -> str:
        """The Jinja source of the chat template, saved with the tokenizer."""
        return chat_template(self.layout, opening=self.working[0] if self.opened_by_prompt else "")

    @property
    def instructions(self) -> str:
        """The system prompt that explains the format; '' if only the template's preamble does."""
        # A format with its own `wording`, where `{0}` to `{3}` stand for the four tags; or one with
        # a preamble in its template and no wording: the preamble explains it, so this is ''.
        if self.wording or self.layout.preamble:
            return self.wording.format(*self.marks)
        sentences = (
            f"Work through the problem between {self.working[0]} and {self.working[1]}. "
            f"Then give the answer alone between {self.answer[0]} and {self.answer[1]}."
        )
        # A format with tags on lines of their own (`xml`) also shows the form: without SFT, the
        # prompt is the only place where a model sees the line breaks.
        if self.opened_by_prompt or "\n" not in self.separator:
            return sentences
        form = self.target(solution="...", reference="...").strip()
        return f"{sentences} Each tag is on a line of its own:\n{form}"

    def target(self, *, solution: str, reference: str) -> str:
        """Render the completion that SFT trains on, without EOS.

        For `xml`, whose separator is "\\n":
        "<reasoning>\\n18 + 54 = 72\\n</reasoning>\\n<answer>\\n72\\n</answer>\\n"

        Args:
            solution: the reasoning; may be ''.
            reference: the answer.
        """
        gap = self.separator
        # `working` is (opening, closing) tag of the reasoning, `answer` those of the answer.
        # If the prompt ends with the opening tag, the target has none, and begins with the white
        # space after the tag, `opens_with`: a space in r1_zero, a line break in working_out_lines.
        opening = self.opens_with if self.opened_by_prompt else f"{self.working[0]}{gap}"
        # The text from `</think>` to `<answer>`. None: the format requires no certain text there.
        between = gap if self.between is None else self.between
        reasoning = f"{solution.strip()}{gap}{self.working[1]}"
        answer = f"{self.answer[0]}{gap}{reference}{gap}{self.answer[1]}{gap}"
        target = f"{opening}{reasoning}{between}{answer}"
        # Templates strip an answer.
        return target.strip() if self.layout is OWN else target

    def parse(self, completion: str) -> ParsedCompletion:
        """Parse one completion; never raises, whatever the text.

        `format_ok` is True if the completion has each tag once (without the opening one that the
        prompt has), in order, `between` where the format sets it, and no other text outside of the
        two blocks. Reasoning and answer are parsed independently of that.
        """
        # The reasoning's opening tag; its closing tag and the answer's two.
        opening, *others = self.marks
        # If the prompt ends with the opening tag, the completion must not repeat it.
        num_opening = 0 if self.opened_by_prompt else 1
        counts_ok = completion.count(opening) == num_opening and all(
            completion.count(mark) == 1 for mark in others
        )
        # The pattern checks the order. It is tried last: on a text with repeated marks it takes
        # quadratic time.
        format_ok = counts_ok and self._whole.fullmatch(completion) is not None
        return ParsedCompletion(
            reasoning=self._reasoning(completion),
            answer=self._answer(completion),
            format_ok=format_ok,
        )

    # Compiled once per format: `cached_property` writes to `__dict__`, which frozen dataclasses
    # allow.
    @cached_property
    def _whole(self) -> re.Pattern[str]:
        """The pattern of a whole completion: reasoning and answer, then at most white space.

        For `r1_zero`, whose prompt has the opening tag: `… </think> <answer>72</answer>`. `parse`
        matches it against the whole text.
        """
        # The reasoning's opening and closing tag, then the answer's. They may come from params, and
        # a `[` or `|` in a tag must not act as a pattern.
        tags = [re.escape(mark) for mark in self.marks]
        opening = "" if self.opened_by_prompt else rf"\s*{tags[0]}"
        # From the reasoning's closing to the answer's opening tag: the format's text, or if it has
        # none, any white space.
        between = r"\s*" if self.between is None else re.escape(self.between)
        return re.compile(rf"{opening}.*?{tags[1]}{between}{tags[2]}.*?{tags[3]}\s*", re.DOTALL)

    def _reasoning(self, completion: str) -> str | None:
        """Return the text between the reasoning's tags; None if one is missing.

        The opening tag may be at the end of the prompt instead of in the completion: the reasoning
        then begins with the completion.
        """
        # `working` is (opening, closing) tag. `closing` and `opening` are the tag, or '' if it is
        # missing. Of several closing tags the first one ends the reasoning.
        before, closing, _ = completion.partition(self.working[1])
        _, opening, after = before.partition(self.working[0])
        if not closing or not (opening or self.opened_by_prompt):
            return None
        return (after if opening else before).strip()

    def _answer(self, completion: str) -> str | None:
        # The last pair: a completion that corrects itself means its last answer. `closing` and
        # `opening` are the tag, or '' if it is missing.
        before, closing, _ = completion.rpartition(self.answer[1])
        _, opening, answer = before.rpartition(self.answer[0])
        return answer.strip() if closing and opening else None


@dataclasses.dataclass(frozen=True)
class BoxedFormat(_Judge):
    """A format with free reasoning that ends in `\\boxed{answer}`, with `TaggedFormat`'s methods.

    Attributes:
        instructions: our system prompt for the format; '' for none.
        layout: the text around turns.
        marks: empty, since there are no tags.
        stop_strings: empty: only EOS ends a completion.
        tool: see `TaggedFormat`.
    """

    name: str
    instructions: str = ""
    layout: Layout = PLAIN

    marks: tuple[str, ...] = ()
    stop_strings: tuple[str, ...] = ()
    tool: str = ""

    @property
    def chat_template(self) -> str:
        return chat_template(self.layout)

    def target(self, *, solution: str, reference: str) -> str:
        """Render the completion that SFT trains on: the solution, then a line with the answer box.

        "18 + 54 = 72", "72" -> "18 + 54 = 72\\n\\boxed{72}"

        No box is added if the solution's last box has the answer already.
        """
        reasoning = solution.strip()
        box = last_box(reasoning)
        if box and box.content == reference:
            return reasoning
        # lstrip: no empty first line where there is no solution.
        return f"{reasoning}\n\\boxed{{{reference}}}".lstrip()

    def parse(self, completion: str) -> ParsedCompletion:
        """Parse a completion; `format_ok` is True if there is a box and it is not empty.

        The answer is the content of the last box. The reasoning is the text before this box if the
        box is the last line, else the whole completion; None if it is empty.
        """
        box = last_box(completion)
        if box is None:
            return ParsedCompletion(
                reasoning=completion.strip() or None, answer=None, format_ok=False
            )
        before, after = completion[: box.start], completion[box.end :]
        is_last_line = not after.strip() and (not before or before.endswith("\n"))
        reasoning = before if is_last_line else completion
        return ParsedCompletion(
            reasoning=reasoning.strip() or None, answer=box.content, format_ok=bool(box.content)
        )


PromptFormat = TaggedFormat | BoxedFormat
