"""Signs that reinforcement goes wrong, read off its curve and said in words, each once.

They are a function of what was logged, so that a run that was interrupted ends with the same ones.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lib.params.training import Reward
from lib.rewards.functions import ANSWER_ACCURACY, stack_range

Point = Mapping[str, float]

GAP = "sampling/sampling_logp_difference"
"""Columns with how far the sampler's log-probs are from the trainer's: `/mean` and `/max`."""

STEADY = 3
"""Logged points in a row that make a sign: one step of few completions says little."""
WINDOW = 10
"""Logged points of the means that are compared over time."""
NEAR = 0.01
"""Part of the range of rewards within which a mean is at its end."""
COLLAPSED = 0.1
"""Part of its first value below which entropy has collapsed."""
MANY_CUT = 0.5
"""Share of completions at the length limit that is too much."""
DRIFTED, ROUNDING = 10.0, 1e-6
"""Times the sampler's first gap to the trainer that are more than rounding, and the nats per token
that any two ways to compute in float32 are apart."""
APART = {"float32": 0.001, "bfloat16": 0.05}
"""Nats per token between sampler and trainer on equal weights that are more than rounding in that
precision: ten times and more of what was measured (docs/vllm.md)."""
EXPECTED_UNTIL = {"s0": 20}
"""Last step up to which the source of a stack expects rewards at their minimum."""
EXPLODED = 20.0
"""Times the usual norm of a gradient that are an explosion."""
RISEN, FALLEN = 0.05, 0.05
"""Part of the range of rewards, and points of accuracy, that are more than a swing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What the numbers of a run are held against.

    Attributes:
        lowest, highest: mean rewards of completions that earn nothing, or everything.
        max_new_tokens: longest completion.
        apart: one of `APART`.
        expected_until: see `EXPECTED_UNTIL`.
    """

    lowest: float
    highest: float
    max_new_tokens: int
    apart: float = APART["bfloat16"]
    expected_until: int = 0

    @classmethod
    def of(cls, reward: Reward, *, max_new_tokens: int, dtype: str = "bfloat16") -> "Limits":
        """Those of the rewards that params choose."""
        lowest, highest = stack_range(
            reward.names,
            reward.weights,
            **reward.settings(max_completion_tokens=max_new_tokens),
        )
        return cls(
            lowest=lowest,
            highest=highest,
            max_new_tokens=max_new_tokens,
            apart=APART[dtype],
            expected_until=EXPECTED_UNTIL.get(reward.stack, 0),
        )

    @property
    def near(self) -> float:
        """Distance within which a mean reward is at an end of the range; no reward is near an end
        that is not known."""
        width = self.highest - self.lowest
        return NEAR * width if math.isfinite(width) else 0.0


class WarningSigns(TrainerCallback):
    """Reads the curve point by point, prints each sign when it shows, and keeps them."""

    def __init__(self, stage: str, limits: Limits) -> None:
        self.stage = stage
        self.limits = limits
        self.points: list[Point] = []
        self.signs: list[dict[str, Any]] = []
        """As provenance holds them: since which step, of which kind, in words and with the knob."""
        self.say: Callable[[str], None] = tqdm.write
        """Where lines go; `run_phase` puts the stage's `Announcer` here."""

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Take up what was logged before an interruption."""
        self.points, self.signs = [], []
        for entry in state.log_history:
            if "loss" in entry:
                self.observe(entry)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Point | None = None,
        **kwargs: Any,
    ) -> None:
        """Look at the point that was logged."""
        if logs and "loss" in logs:
            for sign in self.observe({**logs, "step": state.global_step}):
                self.say(f"{self.stage} WARNING step={sign['step']} {sign['text']}")

    def observe(self, point: Point) -> list[dict[str, Any]]:
        """The signs that this point completes and that were not seen before."""
        self.points.append(point)
        seen = {sign["kind"] for sign in self.signs}
        new = [
            {"step": int(point["step"]), "kind": kind, "text": text}
            for kind, look in LOOKS.items()
            if kind not in seen and (text := look(self.points, self.limits))
        ]
        self.signs += new
        return new


def reward_at_minimum_early(points: list[Point], limits: Limits) -> str:
    """No completion earns anything, in steps of which the stack's source expects that."""
    rewards = _at_minimum(points, limits, early=True)
    return rewards and (
        f"the mean reward has been {rewards} over {STEADY} logged steps, the least that the stack "
        f"gives: its source expects that of the first {limits.expected_until} steps "
        "(docs/expectations.md); it is a fault if it lasts"
    )


def reward_at_minimum(points: list[Point], limits: Limits) -> str:
    """No completion earns anything, and nobody expects that."""
    rewards = _at_minimum(points, limits, early=False)
    return rewards and (
        f"the mean reward has been {rewards} over {STEADY} logged steps, and the stack's range is "
        f"{limits.lowest:g} ... {limits.highest:g}: completions earn nothing, SFT has not taught "
        "the format. See `make debug-rollouts CHECKPOINT=data/models/sft`; raise sft.num_epochs"
    )


def _at_minimum(points: list[Point], limits: Limits, *, early: bool) -> str:
    if (points[-1]["step"] <= limits.expected_until) != early:
        return ""
    return _steady(points, "reward", lambda value: value <= limits.lowest + limits.near)


def no_signal(points: list[Point], limits: Limits) -> str:
    """Equal rewards in every group: no advantage, no gradient."""
    if not _steady(points, "frac_reward_zero_std", lambda value: value >= 1):
        return ""
    reward = points[-1].get("reward", float("nan"))
    best = reward >= limits.highest - limits.near
    remedy = (
        "Everything is earned already: take harder problems (prepare.grpo)"
        if best
        else "Raise grpo.group_size or rollout.temperature, or take problems that are solved "
        "sometimes (`make difficulty`)"
    )
    return (
        f"every group has had equal rewards over {STEADY} logged steps (mean reward {reward:.3g}): "
        f"no advantage, no gradient. {remedy}"
    )


def entropy_collapse(points: list[Point], limits: Limits) -> str:
    """The policy says one thing only, and has nothing left to choose from."""
    values = _column(points, "entropy")
    if len(values) < 2 * STEADY:
        return ""
    first = sum(values[:STEADY]) / STEADY
    if max(values[-STEADY:]) >= COLLAPSED * first:
        return ""
    return (
        f"entropy has collapsed to {values[-1]:.3g} nats per token, from {first:.3g} at the start: "
        "the policy no longer explores. Set grpo.entropy_target, raise grpo.beta, or lower "
        "grpo.learning_rate"
    )


def at_the_limit(points: list[Point], limits: Limits) -> str:
    """Completions that never come to their end."""
    shares = _steady(points, "completions/clipped_ratio", lambda value: value >= MANY_CUT)
    return shares and (
        f"completions run into rollout.max_new_tokens={limits.max_new_tokens}: a share of {shares} "
        f"over {STEADY} logged steps is cut off before its answer. Raise it, add `overlong` to "
        "reward.extra, or set grpo.mask_truncated"
    )


def reward_hacking(points: list[Point], limits: Limits) -> str:
    """Reward rises while answer accuracy falls."""
    rewards, rights = _column(points, "reward"), _column(points, ANSWER_ACCURACY)
    if min(len(rewards), len(rights)) < 2 * WINDOW:
        return ""
    (before, after), (right, still) = _ends(rewards), _ends(rights)
    risen = after - before >= RISEN * (limits.highest - limits.lowest)
    if not risen or right - still < FALLEN:
        return ""
    return (
        f"reward has risen from {before:.3g} to {after:.3g} while answer accuracy has fallen from "
        f"{right:.3g} to {still:.3g} (means of {WINDOW} logged steps): it is earned without right "
        "answers. Give the answer more weight (reward.weights), and read completions with "
        "`make debug-rollouts`"
    )


def gradient_explodes(points: list[Point], limits: Limits) -> str:
    """A gradient that is no number, or many times what it was: clipped, it is mostly direction."""
    norms = _column(points, "grad_norm")
    if norms and not math.isfinite(norms[-1]):
        return (
            f"the gradient's norm is {norms[-1]}: weights or losses are no numbers any more. Lower "
            "grpo.learning_rate"
        )
    # Steps without signal have none.
    usual = statistics.median([norm for norm in norms[:-STEADY] if norm] or [math.inf])
    high = _steady(points, "grad_norm", lambda norm: norm > EXPLODED * usual)
    if len(norms) < WINDOW or not high:
        return ""
    return (
        f"the gradient's norm has been {high} over {STEADY} logged steps, and {usual:.3g} before: "
        "lower grpo.learning_rate or grpo.max_grad_norm"
    )


def sampler_apart(points: list[Point], limits: Limits) -> str:
    """Sampler and trainer never computed the same model, which drift from a first gap hides."""
    first = _first_gap(points)
    if first <= limits.apart:
        return ""
    return (
        f"the sampler's log-probs are {first:.3g} nats per token from the trainer's at the start, "
        f"on equal weights, where rounding leaves less than {limits.apart:g}: one of them computes "
        "another model (dropout, positions, an engine's settings). Compare with "
        "rollout.engine=transformers"
    )


def sampler_drift(points: list[Point], limits: Limits) -> str:
    """The sampler is further from the trainer than this pair was when their weights were equal.

    What two engines' arithmetic makes of the same weights depends on both, on the precision and on
    the model (docs/vllm.md): hence the pair's own first gap.
    """
    first = _first_gap(points)
    bound = DRIFTED * max(first, ROUNDING)
    gaps = _steady(points, f"{GAP}/mean", lambda value: value > bound)
    return gaps and (
        f"the sampler's log-probs have been {gaps} nats per token from the trainer's over {STEADY} "
        f"logged steps, from {first:.3g} at the start, when their weights were the same: it rounds "
        "otherwise than it did, or is on other weights. Compare with rollout.engine=transformers"
    )


LOOKS: dict[str, Callable[[list[Point], Limits], str]] = {
    "reward_at_minimum_early": reward_at_minimum_early,
    "reward_at_minimum": reward_at_minimum,
    "no_signal": no_signal,
    "entropy_collapse": entropy_collapse,
    "at_the_limit": at_the_limit,
    "reward_hacking": reward_hacking,
    "gradient_explodes": gradient_explodes,
    "sampler_apart": sampler_apart,
    "sampler_drift": sampler_drift,
}
"""By kind: says what is wrong after these points, '' where nothing is."""


def _first_gap(points: list[Point]) -> float:
    return next((point[f"{GAP}/mean"] for point in points if f"{GAP}/mean" in point), 0.0)


def _column(points: list[Point], name: str) -> list[float]:
    return [point[name] for point in points if name in point]


def _steady(points: list[Point], name: str, holds: Callable[[float], bool]) -> str:
    """The last values in words if `holds` is true of all, '' if not or if there are too few."""
    values = _column(points, name)[-STEADY:]
    if len(values) < STEADY or not all(map(holds, values)):
        return ""
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def _ends(values: list[float]) -> tuple[float, float]:
    """Mean of the first window and of the last."""
    return sum(values[:WINDOW]) / WINDOW, sum(values[-WINDOW:]) / WINDOW
