"""Dynamic sampling (DAPO, arXiv:2503.14476): replace groups that give the policy no gradient.

Differs from the paper in: a round draws only as many new problems as there are such groups, not a
whole batch, and the number of rounds is bounded.
"""

from collections.abc import Sequence
from itertools import compress
from typing import Any

from lib.core.errors import UserError
from lib.rewards.rollout import Rollout


def refill(trainer: Any, groups: list[list[Rollout]]) -> list[list[Rollout]]:
    """Replace groups without signal by groups of newly drawn problems.

    Sampling is collective under FSDP, so in a round every rank samples as many problems as the rank
    with the most missing groups needs; the other ranks drop their surplus.

    Args:
        trainer: a `PolicyGradientTrainer`.
        groups: the P groups of this process, changed in place and returned.

    Raises:
        UserError: a group is still without signal on some rank after all rounds, and
            `grpo.dynamic_sampling_fallback` is `error`.
    """
    grpo, curve, step = trainer.grpo, trainer.curve, trainer.state.global_step
    # `signals`: [P] True for a group that gives a gradient, and later of every sampled group.
    rounds, signals = grpo.dynamic_sampling, signal_mask(trainer, groups)
    missing = [index for index, signal in enumerate(signals) if not signal]
    round_ = 0
    # `wanted`: the largest number of missing groups on any rank; 0 ends the rounds.
    while (wanted := int(curve.gather([len(missing)]).max())) and round_ < rounds:
        round_ += 1
        count = wanted * trainer.accelerator.num_processes
        new_groups = trainer.sample(
            trainer.order.of_refill(count, step=step, round_=round_), round_=round_
        )
        new_signals = signal_mask(trainer, new_groups)
        signals += new_signals
        spare = list(compress(new_groups, new_signals))
        # Not strict: there may be more missing groups than new ones with signal, or fewer.
        for index, group in zip(missing, spare, strict=False):
            groups[index] = group
        missing = missing[len(spare) :]
    if wanted and grpo.dynamic_sampling_fallback == "error":
        raise UserError(
            f"grpo.dynamic_sampling={rounds}: at step {step + 1}, up to {wanted} of {len(groups)} "
            "groups still have equal rewards when all rounds are used up. The problems are too "
            "easy or too hard for this policy, or its completions too alike: choose others "
            "(`./reckon difficulty`) or a larger grpo.group_size, raise the rounds, or set "
            "grpo.dynamic_sampling_fallback: train"
        )
    curve.record("dynamic_sampling/rounds", round_)
    shares = {
        "frac_without_signal": 1 - sum(signals) / len(signals),
        "frac_unfilled": len(missing) / len(groups),
    }
    for name, share in shares.items():
        curve.record(f"dynamic_sampling/{name}", curve.gather([share]).mean().item())
    return groups


def signal_mask(trainer: Any, groups: Sequence[Sequence[Rollout]]) -> list[bool]:
    """Return a bool per group: True if its rewards differ, and not all of its rollouts are masked.

    With `grpo.mask_truncated`, truncated rollouts are not in the loss.
    """
    rewards = trainer.rewards_of([one for group in groups for one in group])  # [groups · G, F]
    return [
        differ and not (trainer.grpo.mask_truncated and all(one.truncated for one in group))
        for differ, group in zip(trainer.rewards_differ(rewards).tolist(), groups, strict=True)
    ]
