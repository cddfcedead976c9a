"""Prompt formats by name: how prompts are rendered and completions parsed.

Prompts are chat messages, and each format has a Jinja template to render them as text. The template
is saved with the tokenizer, so training, evaluation, serving and a user's own code render the same
prompt. In every template the rendered prompt is a prefix of the rendered prompt plus answer, as
training on completions only requires.
"""

import dataclasses
import itertools
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from lib.artifacts.problems import RESPONSE, Problem
from lib.core.errors import UserError
from lib.core.plugins import is_plugin, load_plugin
from lib.prompts.template import (
    ALPACA,
    LAYOUTS,
    OWN,
    PLAIN,
    R1_ZERO,
    Layout,
    Message,
    chat_template,
)
from lib.prompts.tools import CALCULATOR, find_tool, with_calls


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
    # The pattern matches `\boxed{` (group "box"), `{`, `}`, or an escaped character such as `\{`,
    # which neither opens nor closes.
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


def prompt_format(
    name: str, *, tags: Sequence[str] = (), layout: str = "plain", tool: str = ""
) -> PromptFormat:
    """Return the prompt format `name`, with other tags, another layout and a tool if set.

    Args:
        name: a key of `PROMPT_FORMATS`, such as "r1_zero", or `plugins/formats/file.py:name`.
        tags: four tags in place of the format's own: reasoning open, close, answer open, close; ()
            for its own.
        layout: the text around turns: "plain" for the format's own, or that of a model family,
            "chatml" (Qwen), "llama3", or "own" for the model's own chat template.
        tool: a key of `TOOLS`, `plugins/tools/file.py:name`, or "".

    Raises:
        UserError: an unknown format, layout or tool (lists the known ones), or tags that do not
            suit the format.
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
    if tool:
        find_tool(tool)
        own_format = dataclasses.replace(own_format, tool=tool)
    if layout == "plain":
        return own_format
    if layout not in LAYOUTS:
        raise UserError(f"prompt.layout: no layout `{layout}`; there are {', '.join(LAYOUTS)}")
    # A format like `r1_zero` has a layout of its own, which is part of the format.
    if own_format.layout is not PLAIN:
        raise UserError(
            f"prompt.layout: `{name}` has its own text around the question; use `plain`"
        )
    if layout == "own" and isinstance(own_format, TaggedFormat) and own_format.opened_by_prompt:
        raise UserError(
            f"prompt.layout=own: the reasoning of `{name}` begins in the prompt, and a model's own "
            "template ends that; use format xml or boxed"
        )
    return dataclasses.replace(own_format, layout=LAYOUTS[layout])


def _with_tags(own_format: PromptFormat, tags: Sequence[str]) -> TaggedFormat:
    """Return the format with other tags: reasoning open, close, answer open, close.

    Raises:
        UserError: the format has no tags, or these are not four, none inside another.
    """
    if not isinstance(own_format, TaggedFormat):
        raise UserError(f"prompt.tags: `{own_format.name}` has no tags; leave the list empty")
    # Two equal tags, or one inside another, would make the parts of a completion ambiguous.
    overlap = any(tag in other for tag, other in itertools.permutations(tags, 2))
    if len(tags) != 4 or overlap or not all(tag.strip() for tag in tags):
        raise UserError(
            f"prompt.tags: {list(tags)}; expected four different tags, none inside another: "
            "reasoning open, reasoning close, answer open, answer close"
        )
    # A format with a stop string stops at the closing tag of the answer, which is now another one.
    stops = (tags[3],) if own_format.stop_strings else ()
    layout, new_tags = own_format.layout, dict(zip(own_format.marks, tags, strict=True))
    if layout.preamble:
        # The preamble explains the format by its tags.
        own_tags = "|".join(map(re.escape, new_tags))
        preamble = re.sub(own_tags, lambda match: new_tags[match[0]], layout.preamble)
        layout = dataclasses.replace(layout, preamble=preamble)
    return dataclasses.replace(
        own_format,
        working=(tags[0], tags[1]),
        answer=(tags[2], tags[3]),
        stop_strings=stops,
        layout=layout,
    )


@dataclasses.dataclass(frozen=True)
class Target:
    """The completion that SFT trains on for a problem.

    Attributes:
        text: the completion, without EOS.
        is_converted: True if tags inside the solution were removed, since they are the format's.
        fault: why the format does not parse `text` as it should; '' if it does.
    """

    text: str
    is_converted: bool
    fault: str


def render_target(problem: Problem, written_in: PromptFormat) -> Target:
    """Render a problem's solution and reference in the format `written_in`, and parse the result.

    If the problem is tagged `RESPONSE`, its solution is a model's whole response instead: one in
    this format is returned unchanged, without an opening tag that the prompt has, and one in
    another format (tags of `r1_zero`, or a box) is converted. A solution may hold the format's own
    tags, such as a trace with `<think>`: where the result would not parse, they are removed. With
    the calculator, a solution's equations become calls, but not those of a whole response.
    """
    solution, answer = problem.solution, problem.reference
    text = ""
    if RESPONSE in problem.tags:
        parsed = written_in.parse(solution)
        # Both parts are marked as in this format.
        if parsed.reasoning is not None and parsed.answer is not None:
            answer, text = parsed.answer, solution
            # An opening tag at the start is left out if the prompt ends with it.
            if isinstance(written_in, TaggedFormat) and written_in.opened_by_prompt:
                before, _, after = solution.partition(written_in.working[0])
                text = solution if before.strip() else after
        else:
            # (reasoning, answer) by the marks of another format; None without such marks.
            solution, answer = response_parts(solution) or (solution, answer)
    elif written_in.tool == CALCULATOR:
        solution = with_calls(solution)
    text = text or written_in.target(solution=solution, reference=answer)
    if _fault(text, answer, written_in):
        plain = written_in.target(solution=_unmarked(solution, written_in), reference=answer)
        return Target(plain, is_converted=True, fault=_fault(plain, answer, written_in))
    return Target(text, is_converted=False, fault="")


def _fault(text: str, answer: str, written_in: PromptFormat) -> str:
    """Return why a target would teach another form or answer than it should; '' if it does not."""
    for stop in written_in.stop_strings:
        # Generation ends there: a response may go on.
        before, end, _ = text.partition(stop)
        text = before + end
    parsed = written_in.parse(text)
    if not parsed.format_ok:
        return f"it does not have the form of `{written_in.name}`"
    if parsed.answer != answer.strip():
        return f"`{written_in.name}` parses its answer {answer!r} as {parsed.answer!r}"
    return ""


def _unmarked(solution: str, written_in: PromptFormat) -> str:
    """Return a solution up to its last answer between the format's tags, without any tag."""
    if isinstance(written_in, TaggedFormat):
        opening, closing = written_in.answer
        before, end, _ = solution.rpartition(closing)
        reasoning, start, _ = before.rpartition(opening)
        if start and end:
            solution = reasoning
        # Again, since a removed tag may bring the halves of another together.
        while any(mark in solution for mark in written_in.marks):
            for mark in written_in.marks:
                solution = solution.replace(mark, "")
    return solution.strip()


def response_parts(response: str) -> tuple[str, str] | None:
    """Split a response into (reasoning, answer), by the tags of `r1_zero` or else by its last box.

    "… </think> <answer>72</answer>" -> "…", "72". Returns None if there is no answer in either.
    """
    # Tags first: an answer between tags may hold a box itself.
    for name in ("r1_zero", "boxed"):
        parsed = prompt_format(name).parse(response)
        if parsed.answer:
            return parsed.reasoning or "", parsed.answer
    return None
