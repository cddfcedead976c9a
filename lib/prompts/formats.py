"""What a prompt format is, the formats by name, and what SFT teaches in one.

Prompts are chat messages, and a format brings the Jinja template that turns them into text. The
template is saved with the tokenizer, so that training, evaluation, serving and a user's own code
render one and the same prompt. In every template the rendered prompt is a prefix of the rendered
prompt plus answer, which is what training on completions only needs.
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
    """What a format finds in one completion.

    Attributes:
        reasoning: the working, None where the format's marks for it are missing.
        answer: the answer between its marks (the last such pair), None where there is none.
        format_ok: the completion as a whole has the required form, each mark once, in order.
    """

    reasoning: str | None
    answer: str | None
    format_ok: bool


def conversation(problem: str, *, system: str) -> list[Message]:
    """One question, after `system` where that is not ''."""
    first = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": problem}]


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
        stop_strings: generation ends after any of these and keeps it; empty: only EOS ends it.
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
        """Tags of this format; a tokenizer trained here keeps each as one token."""
        return (*self.working, *self.answer)

    @property
    def chat_template(self) -> str:
        """Jinja source, saved with the tokenizer."""
        return chat_template(self.layout, opening=self.working[0] if self.opened_by_prompt else "")

    @property
    def instructions(self) -> str:
        """System prompt that explains the format; '' where the template does, or none is due."""
        if self.layout.preamble:
            return ""
        return (
            f"Work through the problem between {self.working[0]} and {self.working[1]}. "
            f"Then give the answer alone between {self.answer[0]} and {self.answer[1]}."
        )

    def prompt(self, problem: str, *, system: str) -> list[Message]:
        """Chat messages that ask for `problem`; no system message where `system` is ''."""
        return conversation(problem, system=system)

    def target(self, *, solution: str, reference: str) -> str:
        """The completion that SFT teaches: solution (may be '') and answer, without EOS."""
        gap = self.separator
        opening = self.opens_with if self.opened_by_prompt else f"{self.working[0]}{gap}"
        between = gap if self.between is None else self.between
        working = f"{solution.strip()}{gap}{self.working[1]}{between}"
        return f"{opening}{working}{self.answer[0]}{gap}{reference}{gap}{self.answer[1]}{gap}"

    def parse(self, completion: str) -> ParsedCompletion:
        """Read one completion; never raises, whatever the text."""
        required = self.marks[1:] if self.opened_by_prompt else self.marks
        once = all(completion.count(mark) == 1 for mark in required)
        unopened = not self.opened_by_prompt or self.working[0] not in completion
        # Only then: where a mark is repeated, the pattern takes time quadratic in the text.
        complete = once and unopened and self._whole.fullmatch(completion)
        return ParsedCompletion(
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
    """Free working that ends in `\\boxed{answer}`; the methods are those of a `TaggedFormat`.

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

    def parse(self, completion: str) -> ParsedCompletion:
        """`format_ok`: there is a box, and it is not empty."""
        box = last_box(completion)
        if box is None:
            return ParsedCompletion(
                reasoning=completion.strip() or None, answer=None, format_ok=False
            )
        before, after = completion[: box.start], completion[box.end :]
        stands_alone = not after.strip() and (not before or before.endswith("\n"))
        working = before if stands_alone else completion
        return ParsedCompletion(
            reasoning=working.strip() or None, answer=box.content, format_ok=bool(box.content)
        )


PromptFormat = TaggedFormat | BoxedFormat

PROMPT_FORMATS: dict[str, PromptFormat] = {
    each.name: each
    for each in (
        TaggedFormat(
            name="working_out",
            working=("<start_working_out>", "<end_working_out>"),
            answer=("<SOLUTION>", "</SOLUTION>"),
            opened_by_prompt=True,
        ),
        TaggedFormat(
            name="working_out_lines",
            working=("<start_working_out>", "<end_working_out>"),
            answer=("<SOLUTION>", "</SOLUTION>"),
            opened_by_prompt=True,
            separator="\n",
            opens_with="\n",
        ),
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
    """The format called `name`.

    Args:
        name: as in `PROMPT_FORMATS`, or `plugins/file.py:name`.
        tags: four tags in place of the format's own: working open, close, answer open, close.
        layout: "plain", or the turns of a model family: "chatml" (Qwen), "llama3".

    Raises:
        UserError: no such format or layout (lists those that there are), or tags that the format
            cannot take.
    """
    if is_plugin(name):
        own_format = _own_format(name)
    elif name in PROMPT_FORMATS:
        own_format = PROMPT_FORMATS[name]
    else:
        raise UserError(f"prompt.format: no format `{name}`; there are {', '.join(PROMPT_FORMATS)}")
    if tags:
        own_format = _with_tags(own_format, tags)
    return own_format if layout == "plain" else _with_layout(own_format, layout)


def _own_format(name: str) -> PromptFormat:
    own = load_plugin(name)
    if not isinstance(own, PromptFormat):
        raise UserError(f"{name}: expected a TaggedFormat or a BoxedFormat, got {own!r}")
    return dataclasses.replace(own, name=name)


def _with_tags(own_format: PromptFormat, tags: Sequence[str]) -> TaggedFormat:
    if not isinstance(own_format, TaggedFormat):
        raise UserError(f"prompt.tags: `{own_format.name}` has no tags; leave the list empty")
    if len(tags) != 4 or len(set(tags)) != 4 or not all(tag.strip() for tag in tags):
        raise UserError(
            f"prompt.tags: {list(tags)}; expected four different tags: "
            "working open, working close, answer open, answer close"
        )
    # Generation stops at the end of the answer, whatever that tag is now called.
    stops = (tags[3],) if own_format.stop_strings else ()
    return dataclasses.replace(
        own_format, working=(tags[0], tags[1]), answer=(tags[2], tags[3]), stop_strings=stops
    )


def _with_layout(own_format: PromptFormat, layout: str) -> PromptFormat:
    if layout not in LAYOUTS:
        raise UserError(f"prompt.layout: no layout `{layout}`; there are {', '.join(LAYOUTS)}")
    if own_format.layout is not PLAIN:
        raise UserError(
            f"prompt.layout: `{own_format.name}` brings its own text around the question; "
            "use `plain`"
        )
    return dataclasses.replace(own_format, layout=LAYOUTS[layout])


def prompt_text(
    prompt_format: PromptFormat, problem: str, *, system: str = "", bos_token: str = ""
) -> str:
    """What the model is given before it generates."""
    return render(
        prompt_format.prompt(problem, system=system),
        template=prompt_format.chat_template,
        bos_token=bos_token,
        eos_token="",
        add_generation_prompt=True,
    )


def target_of(problem: Problem, written_in: PromptFormat) -> str:
    """The completion to learn, without EOS.

    A response that is written in the format is taken to the letter: its spaces, a box inside its
    answer, text behind it. One that is written in another is put into this.
    """
    solution, answer = problem.solution, problem.reference
    if RESPONSE in problem.tags:
        parsed = written_in.parse(solution)
        if None not in (parsed.reasoning, parsed.answer):
            return solution
        solution, answer = response_parts(solution) or (solution, answer)
    return written_in.target(solution=solution, reference=answer)


def response_parts(response: str) -> tuple[str, str] | None:
    """Reasoning and answer of a response in `r1_zero` or with a box; None where it marks none."""
    for name in ("r1_zero", "boxed"):
        parsed = prompt_format(name).parse(response)
        if parsed.answer:
            return parsed.reasoning or "", parsed.answer
    return None
