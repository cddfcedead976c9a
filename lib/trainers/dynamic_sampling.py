"""Dynamic sampling (DAPO, arXiv:2503.14476): replace groups that carry no gradient.

A group whose rewards are all equal has advantage 0 for every completion. Such groups are dropped
before the loss, and other problems are drawn for them, until every group of the step has a signal
or the rounds are used up.

Differs from the paper in: the number of rounds is bounded, and a step that is still short then ends
the run; a round draws as many problems as are missing, not a batch of the full size.

P problems per rank, G completions of each.
"""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from lib.errors import UserError
from lib.trainers.rollouts import keyed_seed

Group = TypeVar("Group")


def refill(
    groups: Sequence[Group],
    *,
    rounds: int,
    step: int,
    has_signal: Callable[[Sequence[Group]], list[bool]],
    draw: Callable[[int, int], Sequence[Group]],
    most: Callable[[int], int],
) -> tuple[list[Group], int]:
    """Groups that all carry a signal, the good ones of `groups` in their places.

    Every rank draws as many groups as the rank that misses most of them, so that all of them meet
    in the collectives that drawing and scoring contain; what a rank has too many of is dropped.

    Args:
        rounds: most rounds of drawing.
        step: optimiser step, for the message.
        has_signal: whether the rewards of each group differ.
        draw: that many new groups, given their number and the round (from 1).
        most: the largest of the numbers that the ranks have.

    Returns:
        As many groups as there were, and the number of rounds that it took.

    Raises:
        UserError: after all rounds there is a rank with a group without signal.
    """
    filled: list[Group | None] = [
        group if good else None for group, good in zip(groups, has_signal(groups), strict=True)
    ]
    for taken in range(rounds + 1):
        missing = [place for place, group in enumerate(filled) if group is None]
        wanted = most(len(missing))
        if not wanted:
            return [group for group in filled if group is not None], taken
        if taken == rounds:
            break
        spare = draw(wanted, taken + 1)
        good = [group for group, good in zip(spare, has_signal(spare), strict=True) if good]
        # Not strict: either may be the longer one.
        for place, group in zip(missing, good, strict=False):
            filled[place] = group
    raise UserError(
        f"grpo.dynamic_sampling={rounds}: at step {step + 1}, up to {wanted} of {len(filled)} "
        "groups still have equal rewards when all rounds are used up. The problems are too easy or "
        "too hard for this policy, or its completions too alike: choose others (`make difficulty`) "
        "or a larger grpo.group_size, raise the rounds, or set 0 to train on what there is"
    )


def draw_places(
    count: int, *, num_problems: int, seed: int, step: int, round_: int, rank: int, world_size: int
) -> list[int]:
    """Which problems one rank draws in one round: no two ranks draw the same one.

    Args:
        count: problems per rank.
        num_problems: how many there are, at least `count` for each rank.
        round_: from 1.
    """
    generator = random.Random(keyed_seed(seed, "refill", step, round_))
    places = generator.sample(range(num_problems), count * world_size)
    return places[rank * count : (rank + 1) * count]
