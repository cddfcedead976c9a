"""`Rollout`, a completion that is judged once, and `BoundedReward`, a reward computed from it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from lib.artifacts.completions import UNGRADED, Finish
from lib.artifacts.problems import INSTRUCTION, MULTIPLE_CHOICE
from lib.core.errors import UserError
from lib.prompts import Message, ParsedCompletion, PromptFormat
from reckon_verifier import Verdict, compare
from reckon_verifier.choices import parse_mmlu_letter
from reckon_verifier.extract import extract_answer, unwrapped
from reckon_verifier.tokens import says_something


# eq=False: rollouts are compared and hashed by identity, so that long texts are not compared.
@dataclasses.dataclass(kw_only=True, eq=False)
class Rollout:
    """One completion of a problem, judged when its verdict is first read.

    The grade, the training curve and the rewards that read `answer_ok` share that verdict; some
    stacks extract an answer by their own rules. Form and answer are judged independently: a right
    answer outside the format's marks counts as right (`extract_answer` falls back on boxes, other
    tags, "the answer is …" and the last number). The report can therefore distinguish wrong answers
    from a wrong format.

    Attributes:
        completion: the text, without its prompt.
        reference: the right answer.
        prompt_format: the format of the prompt.
        problem: text of the problem, which the verifier also reads; None if unknown.
        tags: the problem's tags. Some mark multiple choice, or an instruction without a right
            answer.
        prompt: chat messages.
        prompt_ids: the prompt's tokens as the engine read them.
        token_ids, finish, log_probs: see `GeneratedCompletion`; None if unknown.
        settings: the settings of rewards (params: `reward`), and `max_completion_tokens`.
        is_answer: True if the completion is an answer extracted elsewhere.
        rewards: one per function, and `reward`, their weighted sum; `Grading.score` sets both.
        metrics: name → mean over its batch, the completions scored in one call; set by GRPO.
    """

    completion: str
    reference: str
    prompt_format: PromptFormat
    problem: str | None = None
    tags: Sequence[str] = ()
    prompt: Sequence[Message] = ()
    prompt_ids: Sequence[int] = ()
    token_ids: Sequence[int] | None = None
    finish: Finish | None = None
    log_probs: Sequence[float] | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_answer: bool = False
    rewards: Sequence[float] = ()
    reward: float = 0
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    # By answer text.
    verdicts: dict[str | None, Verdict] = dataclasses.field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def num_tokens(self) -> int:
        """The length of the completion in tokens.

        Raises:
            UserError: the caller passed no `completion_ids`, TRL's name of `token_ids`.
        """
        if self.token_ids is None:
            raise UserError("reward: this stack counts tokens; pass `completion_ids`, as TRL does")
        return len(self.token_ids)

    @property
    def truncated(self) -> bool:
        """True if the length limit ended the completion, not the model."""
        return self.finish == "length"

    @property
    def marks(self) -> tuple[str, ...]:
        """Opening and closing tag of the reasoning, then of the answer."""
        return self.prompt_format.marks

    @cached_property
    def parsed(self) -> ParsedCompletion:
        """The completion parsed by its format."""
        return self.prompt_format.parse(self.completion)

    @cached_property
    def marked_answer(self) -> str | None:
        """The text between the answer's marks, or in the last box; None if it is missing or empty.

        `<answer>\\boxed{72}</answer>` gives "72": models trained on boxes put one inside the tags.
        """
        marked = self.parsed.answer
        # `unwrapped` removes a box around the whole text.
        return (marked and unwrapped(marked)) or None

    @cached_property
    def answer(self) -> str | None:
        """The extracted answer, inside the format's marks or not; None if there is none."""
        if self.is_answer:
            return self.completion
        # An instruction has no right answer.
        if INSTRUCTION in self.tags:
            return None
        if MULTIPLE_CHOICE in self.tags:
            # A letter, A to D. From the marks if there is a text between them, since the reasoning
            # also names other options.
            return parse_mmlu_letter(self.marked_answer or self.completion)
        # The completion has the answer's tags: only the text between them counts. If it is empty,
        # `marked_answer` is None.
        if self.marks and self.parsed.answer is not None:
            return self.marked_answer
        # No tags: the last box, "the answer is …", or the last number.
        return extract_answer(self.completion)

    def compare(self, answer: str | None) -> Verdict:
        """Compare an answer with the reference: is it equal, and which step decided?

        Each text is compared once. A stack's rewards may extract different answers, and the
        verifier's symbolic worker can take seconds for one.

        Args:
            answer: None if no answer was extracted; it equals no reference.
        """
        answer = answer and answer.strip()
        if answer not in self.verdicts:
            self.verdicts[answer] = compare(
                reference=self.reference, answer=answer, problem=self.problem
            )
        return self.verdicts[answer]

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict on `answer`, and the step that decided (see the verifier's README)."""
        if INSTRUCTION in self.tags:
            return Verdict(False, UNGRADED)
        return self.compare(self.answer)

    @property
    def answer_ok(self) -> bool:
        """True if the answer equals the reference, inside the marks or not."""
        return self.verdict.equal

    @cached_property
    def format_ok(self) -> bool:
        """True if the whole completion has the required form, and the answer has a letter or digit.

        For an instruction, whose answer may be any text, the form is enough.
        """
        if INSTRUCTION in self.tags or not self.parsed.format_ok:
            return self.parsed.format_ok
        # False for empty marks and for \boxed{\text{}}: otherwise a policy could earn a reward for
        # the form without answering.
        return says_something(self.parsed.answer or "")

    @cached_property
    def strict_ok(self) -> bool:
        """True if `format_ok`, and the answer in its required place equals the reference.

        That place is between the marks, or in the last box. Always False for an instruction, which
        has no right answer.
        """
        if INSTRUCTION in self.tags or not self.format_ok:
            return False
        if MULTIPLE_CHOICE in self.tags:
            # With a text between the marks, `answer` is the letter in that text.
            return self.marked_answer is not None and self.answer_ok
        if not self.answer_ok and not self.marks:
            # A format with a box: of `-\boxed{5}` the box has 5, but the answer is -5, which is
            # wrong for the reference 5.
            return False
        return self.compare(self.marked_answer).equal

    @property
    def label(self) -> str:
        """Two digits, form and answer: "11" both right, "10" form only, "01" answer only, "00"."""
        return f"{self.format_ok:d}{self.answer_ok:d}"


@dataclasses.dataclass(frozen=True)
class BoundedReward:
    """A reward of a stack or a plugin, with its range.

    Attributes:
        score: returns the value of one rollout.
        bounds: smallest and largest value, as a pair or as a function of the settings.
        needs: names of required settings.
        marks: the required prompt format: 4 for any with four tags, a tuple for exactly these tags,
            () for a box, None for any format.
    """

    score: Callable[[Rollout], float]
    bounds: tuple[float, float] | Callable[[Mapping[str, Any]], tuple[float, float]]
    needs: tuple[str, ...] = ()
    marks: int | tuple[str, ...] | None = None

    def range(self, settings: Mapping[str, Any]) -> tuple[float, float]:
        """Return the smallest and largest value under these settings.

        Raises:
            UserError: a required setting is missing.
        """
        # The names of the settings that this reward reads.
        for name in self.needs:
            if settings.get(name) is None:
                raise UserError(f"reward.{name}: not set, and a reward needs it")
        # Bounds that depend on the settings are a function of them.
        return self.bounds(settings) if callable(self.bounds) else self.bounds
