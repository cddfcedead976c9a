"""Preference pairs for DPO: a right against a wrong completion of one problem.

Token ids are kept as generated: encoding a completion's text again may give other tokens than were
sampled.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from lib.artifacts.problems import Problem
from lib.core.errors import UserError
from lib.engines.base import Engine, GeneratedCompletion, Sampling, encode, open_engine
from lib.params.model import Model, Prompt
from lib.params.training import RolloutSampling
from lib.prompts import PromptFormat, prompt_format, saved_system
from lib.rewards.rollout import Rollout


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreferencePair:
    """One preference: two completions of the same prompt.

    Attributes:
        chosen, rejected: the completions as text, for people; training uses the ids.
        prompt_ids: the prompt's token ids as the engine read them.
        chosen_ids, rejected_ids: as generated, with the end token if there was one.
    """

    problem_id: str
    problem: str
    reference: str
    chosen: str
    rejected: str
    prompt_ids: tuple[int, ...]
    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class GradedGroup:
    """The judged completions of one problem.

    Attributes:
        prompt_ids: the prompt's token ids as the engine read them.
        num_completions: all of them, those in neither list included.
        right: completions with the right answer in the required form, not truncated.
        wrong: completions with another answer or none.

    A right answer in the wrong form is in neither list. As the chosen completion it would teach
    the wrong form, as the rejected one it would teach against the right answer.
    """

    problem: Problem
    prompt_ids: tuple[int, ...]
    num_completions: int
    right: list[GeneratedCompletion]
    wrong: list[GeneratedCompletion]

    @property
    def num_right_answers(self) -> int:
        """The number of right answers, whatever their form."""
        return self.num_completions - len(self.wrong)


def sample_checkpoint(
    checkpoint: Path,
    *,
    base: Path,
    problems: Sequence[Problem],
    model: Model,
    prompt: Prompt,
    rollout: RolloutSampling,
    num_completions: int,
    engine: str,
    batch_size: int,
    seed: int,
) -> list[GradedGroup]:
    """Sample and grade completions of a checkpoint of this pipeline, with a progress bar.

    Args:
        base: the weights that an adapter was trained on.
        engine: a name in `ENGINES`.
    """
    used_format = prompt_format(**prompt.rendering)
    opened = open_engine(
        engine,
        checkpoint,
        base=base,
        **model.loading,
        batch_size=batch_size,
        label=f"sample {checkpoint.name}",
    )
    with contextlib.closing(opened):
        return graded_groups(
            opened,
            problems,
            prompt_format=used_format,
            # The system prompt that `prepare` saved beside the base, as training reads it.
            system=saved_system(base),
            sampling=Sampling(
                **rollout.decoding,
                num_completions=num_completions,
                stop_strings=used_format.stop_strings,
                seed=seed,
            ),
        )


def graded_groups(
    engine: Engine,
    problems: Sequence[Problem],
    *,
    prompt_format: PromptFormat,
    system: str,
    sampling: Sampling,
) -> list[GradedGroup]:
    """Sample and grade every problem."""
    prompts = encode(
        engine.tokenizer, [prompt_format.prompt(p.problem, system=system) for p in problems]
    )
    groups = []
    completed = engine.generate(prompts, sampling)
    for problem, prompt, completions in zip(problems, prompts, completed, strict=True):
        group = GradedGroup(problem, tuple(prompt), len(completions), [], [])
        for completion in completions:
            rollout = Rollout(
                completion=completion.text,
                reference=problem.reference,
                prompt_format=prompt_format,
                problem=problem.problem,
                tags=problem.tags,
            )
            # A truncated right answer is not chosen: it would teach to run into the limit.
            if not rollout.answer_ok:
                group.wrong.append(completion)
            elif rollout.format_ok and not completion.truncated:
                group.right.append(completion)
        groups.append(group)
    return groups


def preference_pairs(groups: Sequence[GradedGroup], *, at_most: int) -> list[PreferencePair]:
    """Return up to `at_most` pairs of a right and a wrong completion per problem.

    Raises:
        UserError: no problem has both; names the missing kind and the params to change.
    """
    pairs = [
        PreferencePair(
            problem_id=group.problem.id,
            problem=group.problem.problem,
            reference=group.problem.reference,
            chosen=right.text,
            rejected=wrong.text,
            prompt_ids=group.prompt_ids,
            chosen_ids=right.token_ids,
            rejected_ids=wrong.token_ids,
        )
        for group in groups
        for right, wrong in matched_pairs(group.right, group.wrong, at_most=at_most)
    ]
    if pairs:
        return pairs
    if not any(group.right for group in groups):
        fault = (
            "no completion is right in the required form, so there is nothing to prefer; "
            "train SFT further (sft.num_epochs), or look with `make debug-rollouts`"
        )
    elif not any(group.wrong for group in groups):
        fault = (
            "no completion has a wrong answer, so there is nothing to reject; "
            "take harder problems (prepare.grpo), or leave dpo.init empty"
        )
    else:
        fault = (
            "each problem is solved always or never; raise dpo.pairs.num_completions or "
            "rollout.temperature, or take problems of middle difficulty (`make difficulty`)"
        )
    # Every fault names the setting to change: with no pair, DPO has nothing to train on.
    size = f"{len(groups)} problems x {groups[0].num_completions} completions"
    raise UserError(f"dpo.pairs: no pair in {size}: {fault}")


def sampling_metrics(
    groups: Sequence[GradedGroup], rows: Sequence[PreferencePair]
) -> dict[str, float]:
    """Count the samples, and the pairs made from them."""
    # `right` and `wrong` do not add up to 1: right answers in the wrong form are in neither.
    num_problems = len(groups)
    return {
        "num_rows": len(rows),
        "num_problems": num_problems,
        "right_share": sum(len(group.right) for group in groups)
        / sum(group.num_completions for group in groups),
        "kept_problem_share": len({row.problem_id for row in rows}) / num_problems,
        "without_right_share": sum(not group.right for group in groups) / num_problems,
        "without_wrong_share": sum(not group.wrong for group in groups) / num_problems,
    }


def matched_pairs(
    right: Sequence[GeneratedCompletion], wrong: Sequence[GeneratedCompletion], *, at_most: int
) -> Iterator[tuple[GeneratedCompletion, GeneratedCompletion]]:
    """Pair different completions; each is used once before any is used again."""
    # Along diagonals: (0, 0), (1, 1), … come before (0, 1), so that no text dominates the pairs.
    rights, wrongs = _distinct(right), _distinct(wrong)
    places = sorted(
        ((i, j) for i in range(len(rights)) for j in range(len(wrongs))),
        key=lambda place: (abs(place[0] - place[1]), place),
    )
    for i, j in places[:at_most]:
        yield rights[i], wrongs[j]


def _distinct(completions: Sequence[GeneratedCompletion]) -> list[GeneratedCompletion]:
    # Copies of one completion would weigh it more in training. A dict keeps the order.
    return list({completion.token_ids: completion for completion in completions}.values())
