"""What SFT teaches for a problem: its solution in the prompt format, or a response as it is."""

from lib.artifacts.problems import RESPONSE, Problem
from lib.prompts.base import PromptFormat
from lib.prompts.registry import prompt_format


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
