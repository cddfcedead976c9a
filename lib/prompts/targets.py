"""Render the completions that SFT trains on, and split a model's response into its parts."""

import dataclasses

from lib.artifacts.problems import RESPONSE, Problem
from lib.prompts.formats import PromptFormat, TaggedFormat
from lib.prompts.registry import prompt_format
from lib.prompts.tools import CALCULATOR, with_calls


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
