"""Preference pairs for DPO: a right against a wrong completion of one problem.

Token ids are kept as generated: encoding a completion's text again may give other tokens than were
sampled.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from lib.artifacts.problems import Problem
from lib.core.errors import UserError
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


def is_right(rollout: Rollout) -> bool:
    """Return True if a completion may be chosen: right, in the required form, not truncated.

    A right answer in another form is left out: choosing it would teach that form, rejecting it
    would teach against the answer. A truncated one would teach to run into the length limit.
    """
    return rollout.answer_ok and rollout.format_ok and not rollout.truncated


def is_wrong(rollout: Rollout) -> bool:
    """Return True if a completion may be rejected: it has another answer or none."""
    return not rollout.answer_ok


def preference_pairs(
    problems: Sequence[Problem], groups: Sequence[Sequence[Rollout]], *, at_most: int
) -> list[PreferencePair]:
    """Return up to `at_most` pairs of a right and a wrong completion per problem.

    Args:
        groups: [P][G].

    Raises:
        UserError: no problem has both; names the missing kind and the params to change.
    """
    pairs = [
        PreferencePair(
            problem_id=problem.id,
            problem=problem.problem,
            reference=problem.reference,
            chosen=right.completion,
            rejected=wrong.completion,
            prompt_ids=tuple(right.prompt_ids),
            # `or ()` for the type only: sampled completions have token ids.
            chosen_ids=tuple(right.token_ids or ()),
            rejected_ids=tuple(wrong.token_ids or ()),
        )
        for problem, group in zip(problems, groups, strict=True)
        for right, wrong in matched_pairs(group, at_most=at_most)
    ]
    if pairs:
        return pairs
    every = [rollout for group in groups for rollout in group]
    if not any(map(is_right, every)):
        fault = (
            "no completion is right in the required form, so there is nothing to prefer; "
            "train SFT further (sft.num_epochs), or look with `./reckon debug-rollouts`"
        )
    elif not any(map(is_wrong, every)):
        fault = (
            "no completion has a wrong answer, so there is nothing to reject; "
            "take harder problems (prepare.grpo), or leave dpo.init empty"
        )
    else:
        fault = (
            "each problem is solved always or never; raise dpo.pairs.num_completions or "
            "rollout.temperature, or take problems of middle difficulty (`./reckon difficulty`)"
        )
    size = f"{len(groups)} problems x {len(groups[0])} completions"
    raise UserError(f"dpo.pairs: no pair in {size}: {fault}")


def sampling_metrics(
    groups: Sequence[Sequence[Rollout]], rows: Sequence[PreferencePair]
) -> dict[str, float]:
    """Return the numbers of pairs and of problems P; shares of right completions and of problems.

    `kept_problem_share` are the problems with a pair, `without_right_share` and
    `without_wrong_share` those without such completions.

    Args:
        groups: [P][G].
        rows: the pairs made of them.
    """
    # [P] each. A right answer in the wrong form counts in neither.
    right = [sum(map(is_right, group)) for group in groups]
    wrong = [sum(map(is_wrong, group)) for group in groups]
    num_problems = len(groups)
    return {
        "num_rows": len(rows),
        "num_problems": num_problems,
        "right_share": sum(right) / sum(map(len, groups)),
        "kept_problem_share": len({row.problem_id for row in rows}) / num_problems,
        "without_right_share": right.count(0) / num_problems,
        "without_wrong_share": wrong.count(0) / num_problems,
    }


def matched_pairs(group: Sequence[Rollout], *, at_most: int) -> Iterator[tuple[Rollout, Rollout]]:
    """Yield up to `at_most` pairs (right, wrong) of one problem's completions.

    The first pairs are of different completions, so that none of them dominates.
    """
    # Copies of a completion would get more weight.
    distinct = {rollout.token_ids: rollout for rollout in group}.values()
    rights, wrongs = list(filter(is_right, distinct)), list(filter(is_wrong, distinct))
    # In the order (0, 0), (1, 1), (2, 2), … (0, 1), (1, 0), (1, 2), … (0, 2).
    index_pairs = sorted(
        itertools.product(range(len(rights)), range(len(wrongs))),
        key=lambda pair: (abs(pair[0] - pair[1]), pair),
    )
    for i, j in index_pairs[:at_most]:
        yield rights[i], wrongs[j]
