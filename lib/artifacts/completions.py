"""A completion as generated, and as a stored row; judged, it is a `Rollout` (lib/rewards)."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lib.artifacts import read_records
from lib.core.errors import UserError

Finish = Literal["eos", "stop", "length"]
"""Finish reason: the model's end token, a stop string, or the length limit."""


GREEDY, SAMPLED, VALIDATION = "greedy", "sampled", "validation"
"""Decoding modes of a benchmark; `validation` is greedy decoding during training."""

UNGRADED = "not graded"
"""Value of `decided_by` if no rule grades a completion: an answer to an instruction, which has no
right answer, and is judged outside this pipeline."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratedCompletion:
    """One completion as it was generated, not graded yet.

    Attributes:
        text: decoded without special tokens; includes a stop string.
        token_ids: as generated; includes the end-of-sequence token.
        finish: the finish reason.
        log_probs: per token, under the sampling distribution: after temperature, min-p, top-k and
            top-p (greedy: the whole softmax at temperature 1). The trainer recomputes the same
            quantity, so any gap is rounding. None if `Sampling` did not request them.
        sampled: per token, False for one that a tool forced, whose log-prob is 0; None if all are
            sampled.
    """

    text: str
    token_ids: tuple[int, ...]
    finish: Finish
    log_probs: tuple[float, ...] | None = None
    sampled: tuple[bool, ...] | None = None

    def columns(self) -> dict[str, Any]:
        return {
            "completion": self.text,
            "token_ids": self.token_ids,
            "num_tokens": len(self.token_ids),
            "finish": self.finish,
        }


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GradedCompletion:
    """One completion with its grade: a line of `data/graded/<checkpoint>.jsonl`.

    Attributes:
        checkpoint, benchmark, mode: origin of the completion; `benchmark` may be a validation set.
        sample: number of the completion among those of its problem, from 0.
        answer: as the verifier read it, None if it found none.
        strict_ok: the answer is right, it is in the place that the format requires, and the whole
            completion has the required form.
        label: two digits, `format_ok` and `answer_ok`: "11" is a right answer in the right form.
        decided_by: the deciding rule of the verifier.
        equations: equals signs in the reasoning.
        calls, wrong_calls: number of calls of a tool (`prompt.tool`), and of wrong ones.
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
    calls: int = 0
    wrong_calls: int = 0
    rewards: Mapping[str, float]
    reward: float


def read_graded(path: Path) -> Iterator[GradedCompletion]:
    """Yield the graded completion of each line; unknown fields, of other versions, are ignored.

    Raises:
        UserError: the file is missing, or a line is no graded completion; names file and line.
    """
    names = [field.name for field in dataclasses.fields(GradedCompletion)]

    def parse(row: Any) -> GradedCompletion:
        # A missing field is a KeyError, which `read_records` turns into the UserError.
        # Files of before have no calls.
        row = {"calls": 0, "wrong_calls": 0, **row}
        fields = {name: row[name] for name in names}
        # JSON has no tuples; a list would make equal records unequal.
        return GradedCompletion(**{**fields, "tags": tuple(row["tags"])})

    return read_records(
        path,
        parse,
        what="a graded completion",
        remedy="this file is written by `grade`: run `dvc repro`",
    )


TRAINING_COLUMNS = (
    *("step", "problem", "reference", "prompt", "sample", "completion", "rewards", "reward"),
    *("advantage", "num_tokens", "num_loss_tokens", "truncated", "log_prob_gap", "extra"),
)
"""Columns of `data/rollouts/grpo.jsonl`, a row for each logged completion of a training step:

step                the first optimiser step that used it
prompt              the policy's input, special tokens included
sample              number of the completion in its group, from 0
num_loss_tokens     0 for a completion masked by `mask_truncated` or the sampler's correction
log_prob_gap        |log π − log q| of trainer and sampler in nats, mean over the completion's
                    tokens; None if no gradient was due
extra               what reward functions logged through `log_extra`
"""


def read_rollouts(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the row of each logged training rollout; none if the file is missing or empty.

    Raises:
        UserError: a line is no rollout; names file and line.
    """
    if not path.exists():
        # A run without GRPO has no rollouts, but has a report.
        return iter(())
    return read_records(
        path,
        # A missing column is a KeyError, which `read_records` turns into the UserError.
        lambda row: {name: row[name] for name in TRAINING_COLUMNS},
        what="a rollout of training",
        remedy="`grpo` writes this file: run `dvc repro`",
    )


def describe_selection(phase: str, best: Mapping[str, float]) -> str:
    """Return a sentence on the step that `select: best` chose, and on the bias of its accuracy.

    Args:
        phase: `sft`, `dpo` or `grpo`.
        best: the validation point: its `step` of `last_step`, chosen among `num_points` by
            `answer_accuracy` (a share) on `num_problems` problems.
    """
    return (
        f"{phase} hands on step {best['step']} of {best['last_step']}: of {best['num_points']} "
        f"validation points it has the highest accuracy on {best['num_problems']} held-back "
        f"problems, {100 * best['answer_accuracy']:.1f} %. As a maximum of noisy numbers, this is "
        "higher than on new problems. Benchmarks played no part in the choice"
    )


def num_attempts(completions: Mapping[str, Sequence[Any]], *, what: str) -> int:
    """Return N, the number of completions per problem; refuse problems with different numbers.

    Args:
        completions: problem id → its completions, of any kind: only their number counts. At least
            one problem.
        what: name of the set, for the message.

    Raises:
        UserError: problems have different numbers of completions, so pass@k is not comparable.
    """
    (first, first_completions), *others = completions.items()
    expected = len(first_completions)
    for problem, each in others:
        if len(each) != expected:
            raise UserError(
                f"{what}: problem {first} has {expected} completions and problem {problem} "
                f"{len(each)}; expected the same number: evaluate again (`dvc repro`)"
            )
    return expected
