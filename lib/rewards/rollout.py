"""`Rollout`, a completion that is judged once, and `BoundedReward`, a reward computed from it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any

from lib.artifacts.completions import UNGRADED, Finish
from lib.artifacts.problems import INSTRUCTION, MULTIPLE_CHOICE, Problem
from lib.core.errors import UserError
from lib.core.plugins import guarded, is_plugin
from lib.prompts import Message, ParsedCompletion, PromptFormat
from lib.prompts.tools import num_calls
from reckon_verifier import Verdict, compare
from reckon_verifier.choices import parse_mmlu_letter
from reckon_verifier.extract import extract_answer, unwrapped
from reckon_verifier.rules import INEXACT
from reckon_verifier.tokens import says_something

ANSWER_ACCURACY = "answer_accuracy"
"""Column of the training curve: the share of right answers, whatever their reward."""

DECIDED_BY = "reward/decided_by/"
"""Prefix of columns of the training curve, one per step of the verifier in `INEXACT` (evidence, not
proof): its share of the right answers."""


# eq=False: compared and hashed by identity, not by long texts.
@dataclasses.dataclass(kw_only=True, eq=False)
class Rollout:
    """One completion of a problem, judged when its verdict is first read.

    Form and answer are judged independently: a right answer outside the format's marks counts as
    right (`extract_answer` falls back on boxes, other tags, "the answer is …" and the last number).
    Some stacks extract an answer by their own rules.

    Attributes:
        completion: the text, without its prompt.
        reference: the right answer.
        problem: its text, which the verifier also reads; None if unknown.
        tags: of the problem; some mark multiple choice, or an instruction without a right answer.
        prompt: chat messages; `prompt_ids` are its tokens as the engine read them.
        token_ids, finish, log_probs, sampled: see `GeneratedCompletion`; None if unknown.
        settings: the settings of rewards (params: `reward`), and `max_completion_tokens`.
        is_answer: True if the completion is an answer extracted elsewhere.
        rewards: one per function, and `reward`, their weighted sum; `Grading.score` sets both.
        metrics: name → mean over the completions scored in one call; set by GRPO.
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
    sampled: Sequence[bool] | None = None
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
    def num_sampled(self) -> int:
        """The number of tokens that the policy sampled; a tool forced the others."""
        return self.num_tokens if self.sampled is None else sum(self.sampled)

    @property
    def truncated(self) -> bool:
        """True if the length limit ended the completion."""
        return self.finish == "length"

    @property
    def marks(self) -> tuple[str, ...]:
        """Opening and closing tag of the reasoning, then of the answer."""
        return self.prompt_format.marks

    @cached_property
    def parsed(self) -> ParsedCompletion:
        return self.prompt_format.parse(self.completion)

    @cached_property
    def marked_answer(self) -> str | None:
        """The text between the answer's marks, or in the last box; None if it is missing or empty.

        `<answer>\\boxed{72}</answer>` gives "72": models trained on boxes put one inside the tags.
        """
        marked = self.parsed.answer
        return (marked and unwrapped(marked)) or None

    @cached_property
    def answer(self) -> str | None:
        """The extracted answer, inside the format's marks or not; None if there is none."""
        if self.is_answer:
            return self.completion
        if INSTRUCTION in self.tags:
            return None
        if MULTIPLE_CHOICE in self.tags:
            # From the marks if they hold a text: the reasoning also names other options.
            return parse_mmlu_letter(self.marked_answer or self.completion)
        # Tags around nothing are no answer.
        if self.marks and self.parsed.answer is not None:
            return self.marked_answer
        return extract_answer(self.completion)

    def compare(self, answer: str | None) -> Verdict:
        """Compare an answer (None equals no reference) with the reference, each text once.

        Rewards may extract different answers, and the verifier may take seconds for one. A task of
        `plugins/tasks` judges the whole completion, whatever the answer.
        """
        if self.task_verdict is not None:
            return self.task_verdict
        answer = answer and answer.strip()
        if answer not in self.verdicts:
            self.verdicts[answer] = compare(
                reference=self.reference, answer=answer, problem=self.problem
            )
        return self.verdicts[answer]

    @cached_property
    def task_verdict(self) -> Verdict | None:
        """The verdict of the format's own `right`; None if the maths verifier judges."""
        name = self.prompt_format.name
        # An error names the plugin's line and the completion.
        with guarded(name, inputs=repr(self.completion[:60])) if is_plugin(name) else nullcontext():
            right = self.prompt_format.right(self)
        return None if right is None else Verdict(bool(right), "task")

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
        # Empty marks or \boxed{\text{}} would earn a reward for the form without an answer.
        return says_something(self.parsed.answer or "")

    @cached_property
    def strict_ok(self) -> bool:
        """True if `format_ok`, and the answer between the marks or in the last box is right."""
        if INSTRUCTION in self.tags or not self.format_ok:
            return False
        if MULTIPLE_CHOICE in self.tags:
            return self.marked_answer is not None and self.answer_ok
        if not self.answer_ok and not self.marks:
            # The box of `-\boxed{5}` has 5, but the answer is -5.
            return False
        return self.compare(self.marked_answer).equal

    def columns(self) -> dict[str, Any]:
        return {
            "problem": self.problem or "",
            "reference": self.reference,
            "completion": self.completion,
            "num_tokens": self.num_tokens,
            "truncated": self.truncated,
        }

    @cached_property
    def calls(self) -> tuple[int, int]:
        """The number of calls of the format's tool, and how many of them are wrong."""
        return num_calls(self.completion, self.prompt_format.tool)

    @property
    def label(self) -> str:
        """Two digits, form and answer: "11" both right, "10" form only, "01" answer only, "00"."""
        return f"{self.format_ok:d}{self.answer_ok:d}"


def task_fault(problem: Problem, *, prompt_format: PromptFormat) -> str:
    """Return why a task's verdict refuses a problem's own reference; '' if it accepts it.

    The completion is the one that SFT would learn. '' too for a format that is no task.
    """
    rollout = Rollout(
        completion=prompt_format.target(solution=problem.solution, reference=problem.reference),
        reference=problem.reference,
        problem=problem.problem,
        tags=problem.tags,
        prompt_format=prompt_format,
    )
    if rollout.task_verdict is None or rollout.answer_ok:
        return ""
    return f"`right` of {prompt_format.name} refuses {rollout.completion[:80]!r}"


def judged_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return the answer accuracy, and the share of right answers that each inexact step accepted.

    {"answer_accuracy": 0.5, "reward/decided_by/rounding": 0.1}; a step that accepted no answer has
    no entry.
    """
    steps = [rollout.verdict.decided_by for rollout in rollouts if rollout.answer_ok]
    shares = {
        f"{DECIDED_BY}{name}": steps.count(name) / len(steps) for name in INEXACT if name in steps
    }
    return {ANSWER_ACCURACY: len(steps) / len(rollouts), **shares}


def call_metrics(rollouts: Sequence[Rollout], *, judged: bool = True) -> dict[str, tuple[int, int]]:
    """Return shares of a tool's calls as (sum, count), by column of the curve; {} without a tool.

    `calls/mean` is a completion's number of calls, `calls/wrong` the share of wrong calls,
    `calls/right` the share of the right answers with a call, if rollouts are `judged`.
    """
    if not any(rollout.prompt_format.tool for rollout in rollouts):
        return {}
    calls, wrong = map(sum, zip(*(rollout.calls for rollout in rollouts), strict=True))
    shares = {"calls/mean": (calls, len(rollouts)), "calls/wrong": (wrong, calls)}
    if judged:
        right = [rollout.calls[0] > 0 for rollout in rollouts if rollout.answer_ok]
        shares["calls/right"] = sum(right), len(right)
    return shares


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
        """Return the smallest and largest value; raise UserError for a missing setting."""
        for name in self.needs:
            if settings.get(name) is None:
                raise UserError(f"reward.{name}: not set, and a reward needs it")
        return self.bounds(settings) if callable(self.bounds) else self.bounds
