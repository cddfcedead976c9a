"""What training takes from graded rollouts: preference pairs, a right against a wrong completion of
one problem (DPO), or the right completions by themselves (RAFT, arXiv:2304.06767).

Token ids are kept as they were generated, so that what is trained on is what was sampled.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lib.artifacts.problems import Problem, read_problems
from lib.engines.base import Engine, GeneratedCompletion, Sampling, encode, rollout_sampling
from lib.engines.open import open_engine
from lib.errors import UserError
from lib.params.model import Model, Prompt
from lib.params.training import Pairs, Rollout
from lib.prompts import PromptFormat, format_settings, prompt_format, saved_system
from lib.verifier import grade

T = TypeVar("T")

BOTH_OK = "11"
"""Label of a completion whose form and answer are right."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """One preference: both completions answer the same prompt.

    Attributes:
        chosen, rejected: the completions as text, for whoever reads the file.
        prompt_ids: as the engine was asked.
        chosen_ids, rejected_ids: as generated, the end token where there was one.
    """

    problem_id: str
    problem: str
    reference: str
    chosen: str
    rejected: str
    prompt_ids: tuple[int, ...]
    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mined:
    """What the problems gave.

    Attributes:
        num_problems: that were sampled.
        num_completions: of each problem.
        num_right: completions with the right answer in the right form, of all.
        num_without_right: problems without any such completion.
        num_without_wrong: problems without a wrong answer.
    """

    pairs: tuple[Pair, ...]
    num_problems: int
    num_completions: int
    num_right: int
    num_without_right: int
    num_without_wrong: int

    def metrics(self) -> dict[str, float]:
        """Comparable numbers."""
        paired = len({pair.problem_id for pair in self.pairs})
        return {
            "num_pairs": len(self.pairs),
            "num_problems": self.num_problems,
            "right_share": self.num_right / (self.num_problems * self.num_completions),
            "paired_problem_share": paired / self.num_problems,
            "without_right_share": self.num_without_right / self.num_problems,
            "without_wrong_share": self.num_without_wrong / self.num_problems,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class RightCompletion:
    """A completion with the right answer in the required form; ids as in `Pair`."""

    problem_id: str
    problem: str
    reference: str
    completion: str
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BestOfN:
    """The right completions of the problems that have any; see `Mined` for the numbers."""

    completions: tuple[RightCompletion, ...]
    num_problems: int
    num_completions: int
    num_right: int

    def metrics(self) -> dict[str, float]:
        """Comparable numbers."""
        solved = len({row.problem_id for row in self.completions})
        return {
            "num_completions": len(self.completions),
            "num_problems": self.num_problems,
            "right_share": self.num_right / (self.num_problems * self.num_completions),
            "solved_problem_share": solved / self.num_problems,
        }


def mine_checkpoint(
    checkpoint: Path,
    *,
    mine: Callable[..., T],
    base: Path,
    problems: Path,
    model: Model,
    prompt: Prompt,
    rollout: Rollout,
    settings: Pairs,
    seed: int,
) -> T:
    """What `mine` makes of rollouts of what `sft` or `grpo` wrote to `checkpoint`.

    Args:
        mine: `mine_pairs`, or `best_of_n` without the last of its arguments.
        base: the weights that an adapter was trained on.
        problems: JSONL of problems with references.
    """
    used_format = prompt_format(**format_settings(prompt))
    engine = open_engine(
        rollout.engine,
        checkpoint,
        base=base,
        model=model,
        batch_size=settings.batch_size,
        label=f"pairs {checkpoint.name}",
    )
    with contextlib.closing(engine):
        return mine(
            engine,
            list(read_problems(problems)),
            prompt_format=used_format,
            system=saved_system(base),
            settings=settings,
            sampling=rollout_sampling(
                rollout,
                num_completions=settings.num_completions,
                stop_strings=used_format.stop_strings,
                seed=seed,
            ),
        )


def mine_pairs(
    engine: Engine,
    problems: Sequence[Problem],
    *,
    prompt_format: PromptFormat,
    system: str,
    settings: Pairs,
    sampling: Sampling,
) -> Mined:
    """Sample every problem and pair right completions with wrong ones.

    Right is what has the right answer in the required form and ended by itself; wrong is what has
    another answer or none. A right answer in the wrong form is neither: as the chosen one it would
    teach to leave the form, as the rejected one to leave the answer.

    Raises:
        UserError: no problem gave both kinds; says which kind was missing, and what to change.
    """
    problems = problems[: settings.num_problems or None]
    pairs: list[Pair] = []
    num_right = num_without_right = num_without_wrong = 0
    for problem, prompt, right, wrong in _graded(
        engine, problems, prompt_format=prompt_format, system=system, sampling=sampling
    ):
        num_right += len(right)
        num_without_right += not right
        num_without_wrong += not wrong
        pairs += [
            Pair(
                problem_id=problem.id,
                problem=problem.problem,
                reference=problem.reference,
                chosen=chosen.text,
                rejected=rejected.text,
                prompt_ids=tuple(prompt),
                chosen_ids=chosen.token_ids,
                rejected_ids=rejected.token_ids,
            )
            for chosen, rejected in matched(right, wrong, at_most=settings.max_per_problem)
        ]
    mined = Mined(
        pairs=tuple(pairs),
        num_problems=len(problems),
        num_completions=sampling.num_completions,
        num_right=num_right,
        num_without_right=num_without_right,
        num_without_wrong=num_without_wrong,
    )
    if not pairs:
        raise UserError(_why_no_pair(mined))
    return mined


def best_of_n(
    engine: Engine,
    problems: Sequence[Problem],
    *,
    prompt_format: PromptFormat,
    system: str,
    settings: Pairs,
    sampling: Sampling,
    at_most: int,
) -> BestOfN:
    """Sample every problem and keep `at_most` different right completions of each.

    Right is as in `mine_pairs`. All that is right has the same reward, so that the first are kept,
    not the shortest: a choice by length would teach one.

    Raises:
        UserError: not one completion is right.
    """
    problems = problems[: settings.num_problems or None]
    rows: list[RightCompletion] = []
    num_right = 0
    for problem, prompt, right, _ in _graded(
        engine, problems, prompt_format=prompt_format, system=system, sampling=sampling
    ):
        num_right += len(right)
        rows += [
            RightCompletion(
                problem_id=problem.id,
                problem=problem.problem,
                reference=problem.reference,
                completion=completion.text,
                prompt_ids=tuple(prompt),
                completion_ids=completion.token_ids,
            )
            for completion in _distinct(right)[:at_most]
        ]
    if not rows:
        raise UserError(
            f"raft: not one of {len(problems)} problems x {sampling.num_completions} completions "
            "is right in the required form, so there is nothing to train on; train SFT further "
            "(sft.num_epochs), raise dpo.pairs.num_completions, or look with `make debug-rollouts`"
        )
    return BestOfN(
        completions=tuple(rows),
        num_problems=len(problems),
        num_completions=sampling.num_completions,
        num_right=num_right,
    )


def matched(
    right: Sequence[GeneratedCompletion], wrong: Sequence[GeneratedCompletion], *, at_most: int
) -> Iterator[tuple[GeneratedCompletion, GeneratedCompletion]]:
    """Pairs of different completions; each is used once before any is used again."""
    rights, wrongs = _distinct(right), _distinct(wrong)
    places = sorted(
        ((i, j) for i in range(len(rights)) for j in range(len(wrongs))),
        key=lambda place: (abs(place[0] - place[1]), place),
    )
    for i, j in places[:at_most]:
        yield rights[i], wrongs[j]


def as_rows(mined: Sequence[Pair] | Sequence[RightCompletion]) -> Iterator[Mapping[str, Any]]:
    """As JSONL holds them."""
    for row in mined:
        yield dataclasses.asdict(row)


def _graded(
    engine: Engine,
    problems: Sequence[Problem],
    *,
    prompt_format: PromptFormat,
    system: str,
    sampling: Sampling,
) -> Iterator[tuple[Problem, list[int], list[GeneratedCompletion], list[GeneratedCompletion]]]:
    """Each problem with its prompt, its right completions and its wrong ones."""
    prompts = encode(
        engine.tokenizer, [prompt_format.prompt(p.problem, system=system) for p in problems]
    )
    for problem, prompt, group in zip(
        problems, prompts, engine.generate(prompts, sampling), strict=True
    ):
        yield (
            problem,
            prompt,
            *_right_and_wrong(group, problem=problem, prompt_format=prompt_format),
        )


def _right_and_wrong(
    completions: Sequence[GeneratedCompletion], *, problem: Problem, prompt_format: PromptFormat
) -> tuple[list[GeneratedCompletion], list[GeneratedCompletion]]:
    """The right completions and the wrong ones."""
    right, wrong = [], []
    for completion in completions:
        graded = grade(
            completion.text,
            reference=problem.reference,
            prompt_format=prompt_format,
            problem=problem.problem,
        )
        if not graded.answer_ok:
            wrong.append(completion)
        elif graded.label == BOTH_OK and not completion.truncated:
            right.append(completion)
    return right, wrong


def _distinct(completions: Sequence[GeneratedCompletion]) -> list[GeneratedCompletion]:
    return list({completion.token_ids: completion for completion in completions}.values())


def _why_no_pair(mined: Mined) -> str:
    """Why there is no pair, and what could be done."""
    sampled = (
        f"dpo.pairs: no pair in {mined.num_problems} problems x {mined.num_completions} completions"
    )
    if mined.num_without_right == mined.num_problems:
        return (
            f"{sampled}: not one is right in the required form, so there is nothing to prefer; "
            "train SFT further (sft.num_epochs), or look with `make debug-rollouts`"
        )
    if mined.num_without_wrong == mined.num_problems:
        return (
            f"{sampled}: not one has a wrong answer, so there is nothing to reject; "
            "take harder problems (prepare.grpo), or leave dpo.init empty"
        )
    return (
        f"{sampled}: each problem is solved always or never; raise dpo.pairs.num_completions or "
        "rollout.temperature, or take problems of middle difficulty (`make difficulty`)"
    )
