"""Prompt formats by name: how prompts are rendered and completions parsed.

Prompts are chat messages, and each format has a Jinja template to render them as text. The template
is saved with the tokenizer, so training, evaluation, serving and a user's own code render the same
prompt. In every template the rendered prompt is a prefix of the rendered prompt plus answer, as
training on completions only requires.
"""

import dataclasses
import re
from collections.abc import Sequence
from functools import cached_property

from lib.artifacts.problems import RESPONSE, Problem
from lib.core.errors import UserError
from lib.core.plugins import is_plugin, load_plugin
from lib.prompts.template import (
    ALPACA,
    LAYOUTS,
    PLAIN,
    R1_ZERO,
    Layout,
    Message,
    chat_template,
    render,
)


@dataclasses.dataclass(frozen=True)
class ParsedCompletion:
    """The parts of a completion, as its prompt format parses them.

    Attributes:
        reasoning: text of the reasoning; None if its marks are missing.
        answer: text between the answer's last pair of marks, or in the last box; None if there is
            none.
        format_ok: True if the whole completion has the required form, each mark once, in order.
    """

    reasoning: str | None
    answer: str | None
    format_ok: bool


def conversation(problem: str, *, system: str) -> list[Message]:
    """Return a prompt as chat messages: the system message unless '', then the problem."""
    first = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": problem}]


@dataclasses.dataclass(frozen=True)
class TaggedFormat:
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
        """The system prompt that explains the format; '' if the template's preamble does."""
        # Marks are inserted by position, since `prompt.tags` may have replaced the tags.
        if self.wording or self.layout.preamble:
            return self.wording.format(*self.marks)
        sentences = (
            f"Work through the problem between {self.working[0]} and {self.working[1]}. "
            f"Then give the answer alone between {self.answer[0]} and {self.answer[1]}."
        )
        # Without SFT, the prompt is the only place where a model sees the line breaks.
        if self.opened_by_prompt or "\n" not in self.separator:
            return sentences
        form = self.target(solution="...", reference="...").strip()
        return f"{sentences} Each tag is on a line of its own:\n{form}"

    def target(self, *, solution: str, reference: str) -> str:
        """Render the completion that SFT trains on, without EOS; `solution` may be ''."""
        gap = self.separator
        # If the prompt ends with the opening tag, the target begins after it (r1_zero: a space).
        opening = self.opens_with if self.opened_by_prompt else f"{self.working[0]}{gap}"
        between = gap if self.between is None else self.between
        working = f"{solution.strip()}{gap}{self.working[1]}{between}"
        return f"{opening}{working}{self.answer[0]}{gap}{reference}{gap}{self.answer[1]}{gap}"

    def parse(self, completion: str) -> ParsedCompletion:
        """Parse one completion; never raises, whatever the text."""
        # If the prompt has the opening tag, the completion must not repeat it (`unopened`).
        required = self.marks[1:] if self.opened_by_prompt else self.marks
        once = all(completion.count(mark) == 1 for mark in required)
        unopened = not self.opened_by_prompt or self.working[0] not in completion
        # The pattern comes last: on a text with repeated marks it takes quadratic time.
        complete = once and unopened and self._whole.fullmatch(completion)
        return ParsedCompletion(
            reasoning=self._reasoning(completion),
            answer=self._answer(completion),
            format_ok=bool(complete),
        )

    # Compiled once per format: `cached_property` writes to `__dict__`, which frozen dataclasses
    # allow.
    @cached_property
    def _whole(self) -> re.Pattern[str]:
        """The pattern of a complete completion: reasoning and answer, then at most white space.

        For `r1_zero`, whose prompt has the opening tag: `… </think> <answer>72</answer>`.
        """
        # Tags are texts from params: `[` or `|` in one must not act as a pattern.
        tags = [re.escape(mark) for mark in self.marks]
        opening = "" if self.opened_by_prompt else rf"\s*{tags[0]}"
        between = r"\s*" if self.between is None else re.escape(self.between)
        return re.compile(rf"{opening}.*?{tags[1]}{between}{tags[2]}.*?{tags[3]}\s*", re.DOTALL)

    def _reasoning(self, completion: str) -> str | None:
        """Return the text between the reasoning's tags; None if one is missing.

        The opening tag may be at the end of the prompt instead of in the completion.
        """
        # The first closing tag: reasoning that repeats itself ends there.
        before, closed, _ = completion.partition(self.working[1])
        _, opened, after = before.partition(self.working[0])
        if not closed or not (opened or self.opened_by_prompt):
            return None
        return (after if opened else before).strip()

    def _answer(self, completion: str) -> str | None:
        """Return the text in the last pair of the answer's tags; None if there is no pair."""
        # The last pair: a completion that corrects itself means its last answer.
        before, closed, _ = completion.rpartition(self.answer[1])
        _, opened, answer = before.rpartition(self.answer[0])
        return answer.strip() if closed and opened else None


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
    """Find the last `\\boxed{…}` (or `\\fbox{…}`, `\\framebox{…}`) with balanced braces.

    Nested braces belong to the content: `so \\boxed{\\frac{1}{2}}.` gives the content
    `\\frac{1}{2}`. Escaped braces are text. Of a box inside a box, the outer one counts. One pass:
    linear time on any text.
    """
    last = None
    # A stack of the braces that are still open. Escaped braces match `\\.` in the pattern, and
    # neither open nor close.
    open_braces: list[re.Match[str]] = []
    for brace in _BRACE.finditer(text):
        if brace["box"] or brace.group() == "{":
            open_braces.append(brace)
        elif brace.group() == "}" and open_braces:
            opened = open_braces.pop()
            if opened["box"]:
                # Overwritten by each box that ends later: an outer box, or the next one.
                content = text[opened.end() : brace.start()].strip()
                last = Box(opened.start(), brace.end(), content)
    return last


@dataclasses.dataclass(frozen=True)
class BoxedFormat:
    """A format with free reasoning that ends in `\\boxed{answer}`, with `TaggedFormat`'s methods.

    Attributes:
        instructions: our system prompt for the format; '' for none.
        layout: the text around turns.
        marks: empty, since there are no tags.
        stop_strings: empty: only EOS ends a completion.
    """

    name: str
    instructions: str = ""
    layout: Layout = PLAIN

    marks: tuple[str, ...] = ()
    stop_strings: tuple[str, ...] = ()

    @property
    def chat_template(self) -> str:
        """The Jinja source of the chat template, saved with the tokenizer."""
        return chat_template(self.layout)

    def target(self, *, solution: str, reference: str) -> str:
        """Render the completion that SFT trains on: the solution, then the answer's box on a line.

        No box is added if the solution's last box has the answer already.
        """
        working = solution.strip()
        box = last_box(working)
        if box and box.content == reference:
            return working
        # lstrip: no empty first line where there is no solution.
        return f"{working}\n\\boxed{{{reference}}}".lstrip()

    def parse(self, completion: str) -> ParsedCompletion:
        """Parse a completion; `format_ok` is True if there is a box and it is not empty."""
        box = last_box(completion)
        if box is None:
            return ParsedCompletion(
                reasoning=completion.strip() or None, answer=None, format_ok=False
            )
        # A box in a sentence is part of the reasoning; on a line of its own at the end it is not.
        before, after = completion[: box.start], completion[box.end :]
        stands_alone = not after.strip() and (not before or before.endswith("\n"))
        working = before if stands_alone else completion
        return ParsedCompletion(
            reasoning=working.strip() or None, answer=box.content, format_ok=bool(box.content)
        )


PromptFormat = TaggedFormat | BoxedFormat

WORKING_OUT = TaggedFormat(
    name="working_out",
    working=("<start_working_out>", "<end_working_out>"),
    answer=("<SOLUTION>", "</SOLUTION>"),
    opened_by_prompt=True,
)

PROMPT_FORMATS: dict[str, PromptFormat] = {
    each.name: each
    for each in (
        WORKING_OUT,
        dataclasses.replace(WORKING_OUT, name="working_out_lines", separator="\n", opens_with="\n"),
        TaggedFormat(
            name="xml",
            working=("<reasoning>", "</reasoning>"),
            answer=("<answer>", "</answer>"),
            opened_by_prompt=False,
            separator="\n",
        ),
        TaggedFormat(
            name="r1_zero",
            working=("<think>", "</think>"),
            answer=("<answer>", "</answer>"),
            opened_by_prompt=True,
            opens_with=" ",
            between=" ",
            stop_strings=("</answer>",),
            layout=R1_ZERO,
            # The public course's prompt, which differs from the paper's in a few words.
            wording=(
                "A conversation between User and Assistant. The User asks a question, and the "
                "Assistant solves it. The Assistant first thinks about the reasoning process in "
                "the mind and then provides the User with the answer. The reasoning process is "
                "enclosed within {0} {1} and answer is enclosed within {2} {3} tags, "
                "respectively, i.e., {0} reasoning process here {1} {2} answer here {3}."
            ),
        ),
        BoxedFormat(
            name="boxed",
            instructions="Solve the problem step by step. Put the final answer in \\boxed{}.",
        ),
        BoxedFormat(name="question_only"),
        BoxedFormat(name="alpaca", layout=ALPACA),
    )
}


def prompt_format(name: str, *, tags: Sequence[str] = (), layout: str = "plain") -> PromptFormat:
    """Return the prompt format `name`, with other tags and another layout if set.

    Args:
        name: as in `PROMPT_FORMATS`, or `plugins/file.py:name`.
        tags: four tags in place of the format's own: reasoning open, close, answer open, close.
        layout: "plain", or the turns of a model family: "chatml" (Qwen), "llama3".

    Raises:
        UserError: an unknown format or layout (lists the known ones), or tags that do not suit the
            format.
    """
    own_format = load_plugin(name) if is_plugin(name) else PROMPT_FORMATS.get(name)
    if own_format is None:
        raise UserError(f"prompt.format: no format `{name}`; there are {', '.join(PROMPT_FORMATS)}")
    if not isinstance(own_format, PromptFormat):
        raise UserError(f"{name}: expected a TaggedFormat or a BoxedFormat, got {own_format!r}")
    if is_plugin(name):
        # Named as in params, so that a saved format finds the plugin again.
        own_format = dataclasses.replace(own_format, name=name)
    if tags:
        own_format = _with_tags(own_format, tags)
    if layout == "plain":
        return own_format
    if layout not in LAYOUTS:
        raise UserError(f"prompt.layout: no layout `{layout}`; there are {', '.join(LAYOUTS)}")
    if own_format.layout is not PLAIN:
        raise UserError(
            f"prompt.layout: `{name}` has its own text around the question; use `plain`"
        )
    return dataclasses.replace(own_format, layout=LAYOUTS[layout])


def _with_tags(own_format: PromptFormat, tags: Sequence[str]) -> TaggedFormat:
    """Return the format with `tags` in place of its own, in the order of `TaggedFormat.marks`."""
    if not isinstance(own_format, TaggedFormat):
        raise UserError(f"prompt.tags: `{own_format.name}` has no tags; leave the list empty")
    # Two equal tags would make the parts of a completion ambiguous.
    if len(tags) != 4 or len(set(tags)) != 4 or not all(tag.strip() for tag in tags):
        raise UserError(
            f"prompt.tags: {list(tags)}; expected four different tags: "
            "reasoning open, reasoning close, answer open, answer close"
        )
    # A format with a stop string stops at its answer's closing tag: replace it by the new one.
    stops = (tags[3],) if own_format.stop_strings else ()
    return dataclasses.replace(
        own_format, working=(tags[0], tags[1]), answer=(tags[2], tags[3]), stop_strings=stops
    )


def prompt_text(
    prompt_format: PromptFormat, problem: str, *, system: str = "", bos_token: str = ""
) -> str:
    """Render a problem's prompt as text, up to the start of the completion."""
    return render(
        conversation(problem, system=system),
        template=prompt_format.chat_template,
        bos_token=bos_token,
        # No EOS in a prompt: the template prints it after answers only.
        eos_token="",
        add_generation_prompt=True,
    )


def render_target(problem: Problem, written_in: PromptFormat) -> str:
    """Render the completion that SFT trains on for a problem, without EOS.

    The solution of a problem tagged `RESPONSE` is a model's whole response. One in this format is
    returned unchanged, with its spaces, a box inside its answer and text after it. One in another
    format is converted.
    """
    solution, answer = problem.solution, problem.reference
    if RESPONSE in problem.tags:
        parsed = written_in.parse(solution)
        # The response is in this format already.
        if None not in (parsed.reasoning, parsed.answer):
            return solution
        solution, answer = response_parts(solution) or (solution, answer)
    return written_in.target(solution=solution, reference=answer)


def response_parts(response: str) -> tuple[str, str] | None:
    """Split a response into reasoning and answer, by the tags of `r1_zero` or else by its last box.

    None if it has neither.
    """
    # Tags first: an answer between tags may hold a box itself.
    for name in ("r1_zero", "boxed"):
        parsed = prompt_format(name).parse(response)
        if parsed.answer:
            return parsed.reasoning or "", parsed.answer
    return None
