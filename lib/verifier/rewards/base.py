"""What a reward function sees, and how it becomes one of TRL's."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from lib.errors import UserError
from lib.prompts.base import PromptFormat
from lib.verifier.extract import as_text
from lib.verifier.grading import Grade, grade

Completion = str | list[dict[str, Any]]
"""Text, or the chat messages that TRL passes for conversational data."""

RewardFn = Callable[..., list[float]]
"""TRL's signature: `(prompts, completions, **columns) -> list[float]`, one value a completion."""


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


@dataclasses.dataclass(frozen=True)
class Rollout:
    """One completion as a reward function sees it.

    Attributes:
        completion: the text, without its prompt.
        reference: the right answer.
        num_tokens: length of the completion in tokens; None where the caller does not tell.
        problem: text of the problem, context of the comparison; None where it is not known.
        prompt_format: the format that the prompt asked for.
        settings: see `RewardSettings`.
    """

    completion: str
    reference: str
    num_tokens: int | None
    prompt_format: PromptFormat
    settings: RewardSettings
    problem: str | None = None

    @property
    def grade(self) -> Grade:
        """Form and answer of the completion."""
        return grade(
            self.completion,
            reference=self.reference,
            prompt_format=self.prompt_format,
            problem=self.problem,
        )

    @property
    def tags(self) -> tuple[str, ...]:
        """Opening and closing tag of the working, then of the answer."""
        return self.prompt_format.marks


@dataclasses.dataclass(frozen=True)
class BoundedReward:
    """A registered reward.

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


def completion_text(completion: Completion) -> str:
    """The text of a completion; of chat messages, the last one's content."""
    if isinstance(completion, str):
        return completion
    return as_text(completion[-1]["content"]) if completion else ""


def as_trl(
    name: str, reward: BoundedReward, *, prompt_format: PromptFormat, settings: RewardSettings
) -> RewardFn:
    """`reward` as TRL calls it, under the name by which TRL logs it.

    Raises:
        UserError: a setting that it needs is not set, or the format has not the tags it counts.
    """
    for setting in reward.needs:
        settings.need(setting)
    if reward.tagged and len(prompt_format.marks) != 4:
        raise UserError(
            f"reward `{name}` counts tags, and prompt.format `{prompt_format.name}` has none: "
            "choose `working_out`, `xml` or `r1_zero`"
        )

    def score_all(
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Completion] = (),
        *,
        reference: Sequence[str] | None = None,
        problem: Sequence[str] | None = None,
        completion_ids: Sequence[Sequence[int]] | None = None,
        **columns: object,
    ) -> list[float]:
        if reference is None or len(reference) != len(completions):
            raise UserError(
                f"reward `{name}`: the dataset has no column `reference` with one right answer a "
                "completion; `prepare` writes it: run `dvc repro prepare`"
            )
        unknown = [None] * len(reference)
        lengths = list(map(len, completion_ids)) if completion_ids else unknown
        rows = zip(completions, reference, lengths, problem or unknown, strict=True)
        return [
            reward.score(
                Rollout(
                    completion_text(text), as_text(right), tokens, prompt_format, settings, told
                )
            )
            for text, right, tokens, told in rows
        ]

    score_all.__name__ = score_all.__qualname__ = name
    score_all.__doc__ = reward.score.__doc__
    return score_all
