"""A completion: as an engine generates it, as `grade` writes it, and as GRPO learned from it."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from lib.artifacts import read_records
from lib.core.errors import UserError

Finish = Literal["eos", "stop", "length"]
"""Why a completion ended: the model's end token, a stop string, or the longest length."""


GREEDY, SAMPLED, VALIDATION = "greedy", "sampled", "validation"
"""Modes in which a benchmark is answered; the last is greedy too, while a phase trains."""

UNGRADED = "not graded"
"""What decided an instruction's grade: nothing; a judge compares such completions elsewhere."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratedCompletion:
    """One completion as it was generated; nothing is graded yet.

    Attributes:
        text: decoded, without special tokens, a stop string included.
        token_ids: as generated, the end-of-sequence token included.
        finish: why it ended.
        log_probs: of each token under the distribution that it was sampled from, after
            temperature, min-p, top-k and top-p (greedy: the whole softmax at temperature 1). A
            trainer recomputes exactly that, so that the gap between the two is only rounding. None
            where `Sampling` did not ask for them.
    """

    text: str
    token_ids: tuple[int, ...]
    finish: Finish
    log_probs: tuple[float, ...] | None = None

    @property
    def truncated(self) -> bool:
        """Whether the length limit ended it, not the model."""
        return self.finish == "length"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GradedCompletion:
    """One completion with its grade; the fields of one line of `data/graded/<checkpoint>.jsonl`.

    Attributes:
        checkpoint, benchmark, mode: where it belongs; `benchmark` may be a set of validation.
        sample: number of the completion among those of its problem.
        answer: what the verifier read, None where there is none.
        strict_ok: right in the format's place, in a completion of the required form.
        label: two digits, format and answer: "11" is right in the required form.
        decided_by: which rule of the verifier decided.
        equations: equals signs in the reasoning.
        rewards: by name of the reward function; `reward` is their weighted sum.
    """

    checkpoint: str = ""
    benchmark: str = ""
    mode: str = ""
    sample: int
    problem_id: str
    problem: str
    reference: str
    subject: str
    level: int | str
    tags: tuple[str, ...]
    completion: str
    answer: str | None
    format_ok: bool
    answer_ok: bool
    strict_ok: bool
    label: str
    decided_by: str
    reasoning_present: bool
    reasoning_chars: int
    equations: int
    num_tokens: int
    truncated: bool
    rewards: Mapping[str, float]
    reward: float


def read_graded(path: Path) -> Iterator[GradedCompletion]:
    """One completion a line; fields that another version wrote besides are ignored.

    Raises:
        UserError: the file is missing, or a line is no graded completion; names file and line.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file. `grade` writes it: run `dvc repro`")
    names = [field.name for field in dataclasses.fields(GradedCompletion)]

    def parse(row: Any) -> GradedCompletion:
        fields = {name: row[name] for name in names}
        return GradedCompletion(**{**fields, "tags": tuple(row["tags"])})

    return read_records(
        path,
        parse,
        what="a graded completion",
        remedy="this file is written by `grade`: run `dvc repro`",
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRollout:
    """One completion of one step; the fields of one line of `data/rollouts/grpo.jsonl`.

    Attributes:
        step: the optimiser step that learned from it first.
        prompt: as the policy read it, special tokens included.
        sample: number of the completion in its group.
        rewards: by name of the reward function; `reward` is their weighted sum.
        num_loss_tokens: tokens that the loss counts: none of a completion that `mask_truncated`
            or the sampler's correction leaves out.
        log_prob_gap: |log π − log q| of trainer and sampler in nats, mean over the completion's
            tokens; None where no gradient was due, so that the trainer never scored it.
        extra: what reward functions logged of it through `log_extra`.
    """

    step: int
    problem: str
    reference: str
    prompt: str
    sample: int
    completion: str
    rewards: Mapping[str, float]
    reward: float
    advantage: float
    num_tokens: int
    num_loss_tokens: int
    truncated: bool
    log_prob_gap: float | None
    extra: Mapping[str, Any]


def read_rollouts(path: Path) -> Iterator[TrainingRollout]:
    """One completion a line; none where the file is missing or empty.

    Raises:
        UserError: a line is no rollout; names file and line.
    """
    if not path.exists():
        return iter(())
    return read_records(
        path,
        lambda row: TrainingRollout(**row),
        what="a rollout of training",
        remedy="`grpo` writes this file: run `dvc repro`",
    )
