"""A completion, judged once, and what scores it.

A reward of ours is a function of a `Rollout`. TRL's signature is at the edge, for TRL's trainer and
for functions of one's own: `(prompts, completions, *, completion_ids, **columns) -> list`, one
value per completion. Completions are chat messages (or texts), columns those of the dataset, and
`trainer_state`, `log_metric` and `log_extra` come with them.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

from lib.artifacts.completions import UNGRADED
from lib.artifacts.problems import INSTRUCTION, MULTIPLE_CHOICE
from lib.errors import UserError
from lib.prompts.base import Message, Parsed, PromptFormat
from lib.verifier.equivalence import Verdict, compare
from lib.verifier.extract import as_text, extract_answer, last_boxed, parse_mmlu_letter
from lib.verifier.limits import MAX_ANSWER_CHARS
from lib.verifier.normalize import normalize

RewardFn = Callable[..., Sequence[float | None]]
"""TRL's signature; None says that a function does not apply to a completion."""

ANSWER_ACCURACY = "answer_accuracy"
"""Column of the curve with the share of completions whose answer is right, whatever is rewarded."""

_EMPTY_COMMAND = re.compile(r"\\[a-zA-Z]+\s*\{\s*\}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardSettings:
    """Knobs of the rewards that have any (params: `reward`); None where a stack needs none.

    Attributes:
        max_completion_tokens: tokens that a completion may have; longer is overlong.
        overlong_cache_tokens: tokens before the maximum over which the punishment rises.
        repetition_ngram: words per n-gram of the repetition penalty.
        cosine_correct: cosine reward of a right answer, (shortest, longest).
        cosine_wrong: cosine reward of a wrong answer, (shortest, longest).
    """

    max_completion_tokens: int | None = None
    overlong_cache_tokens: int | None = None
    repetition_ngram: int | None = None
    cosine_correct: tuple[float, float] | None = None
    cosine_wrong: tuple[float, float] | None = None

    def need(self, name: str) -> Any:
        """The setting called `name`.

        Raises:
            UserError: it is not set.
        """
        value = getattr(self, name)
        if value is None:
            raise UserError(f"reward.{name}: not set, but a reward in `reward.stack` needs it")
        return value


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
        settings: see `RewardSettings`.
    """

    completion: str
    reference: str
    prompt_format: PromptFormat
    problem: str | None = None
    tags: Sequence[str] = ()
    prompt: Sequence[Message] = ()
    token_ids: Sequence[int] | None = None
    settings: RewardSettings = RewardSettings()
    _kept: dict[Any, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

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
    def parsed(self) -> Parsed:
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
        if INSTRUCTION in self.tags:
            return None
        if MULTIPLE_CHOICE in self.tags:
            return parse_mmlu_letter(self.marked or self.completion)
        # A format without marks only says where the answer should be, as the rules do.
        return extract_answer(self.completion, marked=self.parsed.answer if self.marks else None)

    def compare(self, answer: str | None, *, thorough: bool = True) -> Verdict:
        """The verifier's verdict on a text as the answer, given once for each text.

        Args:
            thorough: also ask the symbolic worker.
        """
        answer = answer and answer.strip()
        if (answer, thorough) not in self._kept:
            self._kept[answer, thorough] = compare(
                reference=self.reference, answer=answer, problem=self.problem, thorough=thorough
            )
        verdict: Verdict = self._kept[answer, thorough]
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


Kept = TypeVar("Kept")


def kept(read: Callable[[Rollout], Kept]) -> Callable[[Rollout], Kept]:
    """`read`, computed once for each rollout: for what several rewards of a stack look for."""

    def once(rollout: Rollout) -> Kept:
        memo = rollout._kept
        if read not in memo:
            memo[read] = read(rollout)
        value: Kept = memo[read]
        return value

    return once


@dataclasses.dataclass(frozen=True)
class BoundedReward:
    """A reward of a stack, or of one's own.

    Attributes:
        score: value of one rollout.
        bounds: smallest and largest value, as a pair or as a function of the settings.
        needs: fields of `RewardSettings` that must be set.
        tagged: it counts the tags of the prompt format, which must have four.
    """

    score: Callable[[Rollout], float]
    bounds: tuple[float, float] | Callable[[RewardSettings], tuple[float, float]]
    needs: tuple[str, ...] = ()
    tagged: bool = False

    def range(self, settings: RewardSettings) -> tuple[float, float]:
        """Smallest and largest value under these settings."""
        return self.bounds(settings) if callable(self.bounds) else self.bounds


class Batch:
    """The rollouts of the batch that TRL is scoring.

    TRL calls each function with the same lists: by them a batch is recognised, and judged once.
    """

    def __init__(self, prompt_format: PromptFormat, settings: RewardSettings) -> None:
        self.prompt_format, self.settings = prompt_format, settings
        self._columns: tuple[Any, ...] = ()
        self._rollouts: list[Rollout] = []

    def rollouts(
        self,
        completions: Sequence[Any],
        *,
        reference: Sequence[Any] | None = None,
        problem: Sequence[str] | None = None,
        tags: Sequence[Sequence[str]] | None = None,
        completion_ids: Sequence[Sequence[int]] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: object,
    ) -> list[Rollout]:
        """One for each completion; of a new batch, the accuracy is logged.

        Raises:
            UserError: there is not one reference per completion.
        """
        given = (completions, reference, problem, tags, completion_ids)
        if len(self._columns) == len(given) and all(map(_is, self._columns, given)):
            return self._rollouts
        if reference is None or len(reference) != len(completions):
            raise UserError(
                "reward: the dataset has no column `reference` with one right answer a completion; "
                "`prepare` writes it: run `dvc repro prepare`"
            )
        unknown = [None] * len(completions)
        self._columns = given
        self._rollouts = [
            Rollout(
                completion=completion_text(completion),
                reference=as_text(right),
                prompt_format=self.prompt_format,
                problem=question,
                tags=of_problem or (),
                token_ids=ids,
                settings=self.settings,
            )
            for completion, right, question, of_problem, ids in zip(
                completions,
                reference,
                problem or unknown,
                tags or unknown,
                completion_ids or unknown,
                strict=True,
            )
        ]
        if log_metric and self._rollouts:
            log_metric(ANSWER_ACCURACY, accuracy(self._rollouts))
        return self._rollouts


def _is(one: object, other: object) -> bool:
    return one is other


def accuracy(rollouts: Sequence[Rollout]) -> float:
    """Share of the rollouts whose answer is right."""
    return sum(rollout.answer_ok for rollout in rollouts) / len(rollouts)


class RolloutReward:
    """A reward of rollouts by its name, which TRL may call too.

    Raises:
        UserError: a setting that it needs is not set, or the format has not the tags it counts.
    """

    def __init__(self, name: str, reward: BoundedReward, batch: Batch) -> None:
        for setting in reward.needs:
            batch.settings.need(setting)
        if reward.tagged and len(batch.prompt_format.marks) != 4:
            raise UserError(
                f"reward `{name}` counts tags, and prompt.format `{batch.prompt_format.name}` has "
                "none: choose `working_out`, `xml` or `r1_zero`"
            )
        self.__name__ = name
        self.score = reward.score
        self.batch = batch

    def __call__(
        self, prompts: Sequence[Any] | None = None, completions: Sequence[Any] = (), **columns: Any
    ) -> list[float]:
        """See the module."""
        return [self.score(rollout) for rollout in self.batch.rollouts(completions, **columns)]


def scores(
    functions: Sequence[RewardFn], rollouts: Sequence[Rollout], **columns: Any
) -> list[Sequence[float | None]]:
    """[F] what each function gives the rollouts; `columns` are for those with TRL's signature."""
    arguments = {
        "prompts": [rollout.prompt for rollout in rollouts],
        "completions": [[{"role": "assistant", "content": each.completion}] for each in rollouts],
        "completion_ids": [list(rollout.token_ids or ()) for rollout in rollouts],
        "reference": [rollout.reference for rollout in rollouts],
        "problem": [rollout.problem for rollout in rollouts],
        **columns,
    }
    return [
        list(map(function.score, rollouts))
        if isinstance(function, RolloutReward)
        else list(function(**arguments))
        for function in functions
    ]


def completion_text(completion: Any) -> str:
    """The text of a completion; of chat messages, the last one's content."""
    if isinstance(completion, str):
        return completion
    return as_text(completion[-1]["content"]) if completion else ""
