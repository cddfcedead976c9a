"""A completion, judged once, and a reward: a function of that to a number."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, wraps
from typing import Any, TypeVar

from lib.artifacts.completions import UNGRADED
from lib.artifacts.problems import INSTRUCTION, MULTIPLE_CHOICE
from lib.core.errors import UserError
from lib.prompts import Message, ParsedCompletion, PromptFormat
from lib.verifier.equivalence import Verdict, compare
from lib.verifier.extract import as_text, extract_answer, last_boxed, parse_mmlu_letter
from lib.verifier.normalize import normalize
from lib.verifier.tree import MAX_ANSWER_CHARS

Kept = TypeVar("Kept")

_EMPTY_COMMAND = re.compile(r"\\[a-zA-Z]+\s*\{\s*\}")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Rollout:
    """One completion of a problem. What is read in it, and the verdict on it, are computed at first
    use and kept, so that all rewards, the grade and the curve share one verdict.

    Form and answer are judged independently: a right answer outside the format's marks counts as
    right (`extract_answer` falls back on boxes, other tags, "the answer is …" and the last number),
    so that the report can tell a model that cannot solve from one that cannot format.

    Attributes:
        completion: the text, without its prompt.
        reference: the right answer.
        prompt_format: the format that the prompt asked for.
        problem: text of the problem, context of the comparison; None where it is not known.
        tags: the problem's; they say whether it is multiple choice, or an instruction, which has
            no right answer.
        prompt: chat messages.
        token_ids: of the completion; None where the caller does not tell.
        settings: what rewards can be set to (params: `reward`), and `max_completion_tokens`.
        is_answer: the completion is the answer itself, extracted by somebody else.
    """

    completion: str
    reference: str
    prompt_format: PromptFormat
    problem: str | None = None
    tags: Sequence[str] = ()
    prompt: Sequence[Message] = ()
    token_ids: Sequence[int] | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_answer: bool = False
    memo: dict[Any, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

    @property
    def num_tokens(self) -> int:
        """Length of the completion in tokens.

        Raises:
            UserError: the caller passed no `completion_ids`.
        """
        if self.token_ids is None:
            raise UserError("reward: this stack counts tokens; pass `completion_ids`, as TRL does")
        return len(self.token_ids)

    @property
    def marks(self) -> tuple[str, ...]:
        """Opening and closing tag of the reasoning, then of the answer."""
        return self.prompt_format.marks

    @cached_property
    def parsed(self) -> ParsedCompletion:
        """The completion as its format reads it."""
        return self.prompt_format.parse(self.completion)

    @cached_property
    def marked(self) -> str | None:
        """What is where the format wants the answer, a box inside it opened; None for nothing."""
        marked = self.parsed.answer
        return (marked and last_boxed(marked)) or marked or None

    @cached_property
    def answer(self) -> str | None:
        """What the completion answers, inside the format's marks or not; None for nothing."""
        if self.is_answer:
            return self.completion
        if INSTRUCTION in self.tags:
            return None
        if MULTIPLE_CHOICE in self.tags:
            return parse_mmlu_letter(self.marked or self.completion)
        # A format without marks only says where the answer should be, as the rules do.
        if self.marks and self.parsed.answer is not None:
            return self.marked
        return extract_answer(self.completion)

    def compare(self, answer: str | None) -> Verdict:
        """The verifier's verdict on a text as the answer, given once for each text."""
        answer = answer and answer.strip()
        if answer not in self.memo:
            self.memo[answer] = compare(
                reference=self.reference, answer=answer, problem=self.problem
            )
        verdict: Verdict = self.memo[answer]
        return verdict

    @cached_property
    def verdict(self) -> Verdict:
        """Whether `answer` is right, and the step that decided (docs/verifier.md lists them)."""
        if INSTRUCTION in self.tags:
            return Verdict(False, UNGRADED)
        return self.compare(self.answer)

    @property
    def answer_ok(self) -> bool:
        """Whether the answer equals the reference, inside the marks or not."""
        return self.verdict.equal

    @cached_property
    def format_ok(self) -> bool:
        """Whether the completion as a whole has the required form, around an answer that says
        something: were empty marks a form, a policy could earn for the frame only."""
        if INSTRUCTION in self.tags or not self.parsed.format_ok:
            return self.parsed.format_ok
        answer = _EMPTY_COMMAND.sub("", normalize((self.parsed.answer or "")[:MAX_ANSWER_CHARS]))
        return any(map(str.isalnum, answer))

    @cached_property
    def strict_ok(self) -> bool:
        """Whether the form holds, and what is in the place of the answer equals the reference."""
        if INSTRUCTION in self.tags or not self.format_ok:
            return False
        if MULTIPLE_CHOICE in self.tags:
            return self.marked is not None and self.answer_ok
        return self.compare(self.marked).equal

    @property
    def label(self) -> str:
        """Format digit, then answer digit: "11" both, "10" form only, "01", "00"."""
        return f"{self.format_ok:d}{self.answer_ok:d}"


def kept(read: Callable[[Rollout], Kept]) -> Callable[[Rollout], Kept]:
    """`read`, computed once for each rollout: for what several rewards of a stack look for."""

    @wraps(read)
    def once(rollout: Rollout) -> Kept:
        if read not in rollout.memo:
            rollout.memo[read] = read(rollout)
        value: Kept = rollout.memo[read]
        return value

    return once


@dataclasses.dataclass(frozen=True)
class BoundedReward:
    """A reward of a stack, or of one's own.

    Attributes:
        score: value of one rollout.
        bounds: smallest and largest value, as a pair or as a function of the settings.
        needs: settings without which it cannot be computed.
        marks: what the prompt format must have: 4, any four tags, which are counted; or these, ()
            for a box; None, where any format will do.
    """

    score: Callable[[Rollout], float]
    bounds: tuple[float, float] | Callable[[Mapping[str, Any]], tuple[float, float]]
    needs: tuple[str, ...] = ()
    marks: int | tuple[str, ...] | None = None

    def range(self, settings: Mapping[str, Any]) -> tuple[float, float]:
        """Smallest and largest value under these settings.

        Raises:
            UserError: one that it needs is not among them.
        """
        for name in self.needs:
            if settings.get(name) is None:
                raise UserError(f"reward.{name}: not set, and a reward needs it")
        return self.bounds(settings) if callable(self.bounds) else self.bounds


def completion_text(completion: Any) -> str:
    """The text of a completion; of chat messages, the last one's content."""
    if isinstance(completion, str):
        return completion
    return as_text(completion[-1]["content"]) if completion else ""


def as_messages(text: str) -> list[Message]:
    """A completion as the chat messages that TRL makes of it."""
    return [{"role": "assistant", "content": text}]
