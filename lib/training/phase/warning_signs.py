"""Detect failures of GRPO in its curve, and warn once of each, with the param to change.

The signs are a function of the log, so an interrupted and resumed run ends with the same ones.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lib.core.plugins import is_plugin
from lib.params.training import Reward
from lib.rewards.functions import stack_range
from lib.rewards.rollout import ANSWER_ACCURACY, DECIDED_BY
from lib.training.phase.console import say

Point = Mapping[str, float]

GAP = "sampling/sampling_logp_difference"
"""Prefix of the column with the gap |sampler's − trainer's log-prob| in nats: `/mean`."""

STREAK = 3
"""Number of consecutive logged points that must show a sign: one step has too few completions."""
WINDOW = 10
"""Logged points in each of the two means compared over time."""
EDGE = 0.01
"""A mean reward within this share of the reward's range from an end counts as at that end."""
COLLAPSE = 0.1
"""Entropy has collapsed below this share of its first value."""
TRUNCATED_SHARE = 0.5
"""Share of completions at the length limit for a warning."""
DRIFT_FACTOR, ROUNDING = 10.0, 1e-6
"""A gap of this multiple of the first one, or of float32's rounding in nats, is drift."""
MAX_GAP = {"float32": 0.001, "float16": 0.01, "bfloat16": 0.05}
"""Largest gap in nats per token between sampler and trainer on equal weights, by precision: at
least ten times the measured rounding (docs/vllm.md); float16's was not measured."""
MINIMUM_UNTIL = {"s0": 20}
"""Reward stack → last step at which its source still expects rewards at their minimum
(docs/expectations.md)."""
OVERFLOWS = {"float16": 17}
"""Number of overflowing gradients in a row that is a fault; 1 for other precisions. With float16
the scaler skips such a step and halves its scale, which starts at 2^16: 1 after 16 steps."""
EXPLOSION_FACTOR = 20.0
"""Multiple of the gradient's usual norm for a warning."""
REWARD_RISE, ACCURACY_FALL = 0.05, 0.05
"""Rise as a share of the reward's range, and fall in accuracy, beyond noise."""

EVIDENCE_RISE = 0.2
"""Rise, beyond noise, of the share of right answers that one inexact verifier step accepted."""

FORMAT_REMEDY = (
    "if the format is missing, raise sft.num_epochs, or show it in the prompt (prompt.system)"
)
"""The remedy for completions without the format, which SFT or the prompt teaches."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The thresholds of a run's warning signs.

    Attributes:
        lowest, highest: ends of the reward's range.
        max_new_tokens: longest completion, in tokens.
        gap: from `MAX_GAP`.
        overflows: from `OVERFLOWS`.
        expected_until: from `MINIMUM_UNTIL`.
        centred: True if a group of equal rewards has advantages of 0 (`grpo.advantage`).
    """

    lowest: float
    highest: float
    max_new_tokens: int
    gap: float = MAX_GAP["bfloat16"]
    overflows: int = 1
    expected_until: int = 0
    centred: bool = True

    @classmethod
    def from_reward(
        cls,
        reward: Reward,
        *,
        max_new_tokens: int,
        dtype: str = "bfloat16",
        advantage: str = "group",
    ) -> "Limits":
        """Return the limits of the warning signs for a reward, a completion length and a precision.

        Args:
            dtype: of the engine's computation, "float32", "float16" or "bfloat16".
        """
        # Infinite if a plugin's reward has no bounds.
        lowest, highest = stack_range(
            reward.names,
            reward.weights,
            **reward.settings(max_completion_tokens=max_new_tokens),
        )
        return cls(
            lowest=lowest,
            highest=highest,
            max_new_tokens=max_new_tokens,
            gap=MAX_GAP[dtype],
            overflows=OVERFLOWS.get(dtype, 1),
            expected_until=MINIMUM_UNTIL.get(reward.stack, 0),
            # A plugin's advantages may be any.
            centred=advantage != "none" and not is_plugin(advantage),
        )

    @property
    def near(self) -> float:
        """The distance from an end of the reward's range that counts as at it; 0 if unknown."""
        width = self.highest - self.lowest
        return EDGE * width if math.isfinite(width) else 0.0


class WarningSigns(TrainerCallback):
    """Checks each logged point of the curve, prints new warning signs and keeps them."""

    def __init__(self, stage: str, limits: Limits) -> None:
        self.stage = stage
        self.limits = limits
        self.points: list[Point] = []
        self.signs: list[dict[str, Any]] = []
        """Entries for provenance: "step", "kind", and "text" with the param to change."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
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
        # Only points of training: the trainer also logs its run time at the end.
        if logs and "loss" in logs:
            for sign in self.observe({**logs, "step": state.global_step}):
                say(f"{self.stage} WARNING step={sign['step']} {sign['text']}")

    def observe(self, point: Point) -> list[dict[str, Any]]:
        """Add a point, and return its new signs; each kind of sign appears once in a run."""
        self.points.append(point)
        seen = {sign["kind"] for sign in self.signs}
        new = [
            {"step": int(point["step"]), "kind": kind, "text": text}
            for kind, check in CHECKS.items()
            if kind not in seen and (text := check(self.points, self.limits))
        ]
        self.signs += new
        return new


def all_signs(trainer: Trainer) -> list[dict[str, Any]]:
    """Return the signs of a trainer's run, for provenance and the report; [] in SFT and DPO."""
    callbacks = trainer.callback_handler.callbacks
    return [sign for each in callbacks if isinstance(each, WarningSigns) for sign in each.signs]


# Each check returns the warning's text, or '' without a sign.


def reward_at_minimum(points: list[Point], limits: Limits) -> str:
    """Detect rewards at their minimum: completions earn nothing."""
    if points[-1]["step"] <= limits.expected_until:
        return ""
    rewards = _steady_range(points, "reward", lambda value: value <= limits.lowest + limits.near)
    if not rewards:
        return ""
    return (
        f"the mean reward has been {rewards} over {STREAK} logged steps, and the stack's range is "
        f"{limits.lowest:g} ... {limits.highest:g}: completions earn nothing. See "
        f"`./reckon debug-rollouts data/models/sft`; {FORMAT_REMEDY}"
    )


def no_signal(points: list[Point], limits: Limits) -> str:
    """Detect equal rewards in every group: no gradient."""
    if not limits.centred or not _steady_range(
        points, "frac_reward_zero_std", lambda value: value >= 1
    ):
        return ""
    reward = points[-1].get("reward", float("nan"))
    # Problems are too easy if all rewards are at their highest, and else probably too hard.
    if reward >= limits.highest - limits.near:
        remedy = "Everything is earned already: take harder problems (prepare.grpo)"
    else:
        remedy = (
            "Raise grpo.group_size or rollout.temperature, or take problems that are solved "
            "sometimes (`./reckon difficulty`)"
        )
    return (
        f"every group has had equal rewards over {STREAK} logged steps (mean reward {reward:.3g}): "
        f"no advantage, no gradient. {remedy}"
    )


def entropy_collapse(points: list[Point], limits: Limits) -> str:
    """Detect an entropy far below its start: a policy without variety."""
    entropies = _column(points, "entropy")
    if len(entropies) < 2 * STREAK:
        return ""
    first = sum(entropies[:STREAK]) / STREAK
    if max(entropies[-STREAK:]) >= COLLAPSE * first:
        return ""
    return (
        f"entropy has collapsed to {entropies[-1]:.3g} nats per token, from {first:.3g} at the "
        "start: the policy no longer explores. Set grpo.entropy_target, raise grpo.beta, or lower "
        "grpo.learning_rate"
    )


def at_the_limit(points: list[Point], limits: Limits) -> str:
    """Detect many completions truncated at the length limit."""
    shares = _steady_range(
        points, "completions/clipped_ratio", lambda value: value >= TRUNCATED_SHARE
    )
    if not shares:
        return ""
    return (
        f"completions run into the limit of {limits.max_new_tokens} tokens: a share of {shares} "
        f"over {STREAK} logged steps is cut off before its answer. Raise rollout.max_new_tokens, "
        "and model.max_seq_length if prompts leave less than that; or add `overlong` to "
        "reward.extra, or set grpo.mask_truncated"
    )


def reward_hacking(points: list[Point], limits: Limits) -> str:
    """Detect a rising reward beside a falling answer accuracy."""
    rewards, accuracies = _column(points, "reward"), _column(points, ANSWER_ACCURACY)
    if min(len(rewards), len(accuracies)) < 2 * WINDOW:
        return ""
    first_reward, last_reward = _window_means(rewards)
    first_accuracy, last_accuracy = _window_means(accuracies)
    rise = last_reward - first_reward
    risen = rise > 0 and rise >= REWARD_RISE * (limits.highest - limits.lowest)
    if not risen or first_accuracy - last_accuracy < ACCURACY_FALL:
        return ""
    return (
        f"reward has risen from {first_reward:.3g} to {last_reward:.3g} while answer accuracy has "
        f"fallen from {first_accuracy:.3g} to {last_accuracy:.3g} (means of {WINDOW} logged "
        "steps): it is earned without right answers. Give the answer more weight "
        "(reward.weights), and read completions with `./reckon debug-rollouts`"
    )


def evidence_jumps(points: list[Point], limits: Limits) -> str:
    """Detect a rising share of right answers that one of the verifier's inexact steps accepted.

    The policy may exploit a gap in it.
    """
    # A second update on the same rollouts logs no rewards.
    points = [point for point in points if "reward" in point]
    if len(points) < 2 * WINDOW:
        return ""
    for name in sorted(name for name in points[-1] if name.startswith(DECIDED_BY)):
        # A point lacks the column of a verifier step that decided no answer.
        first, last = _window_means([point.get(name, 0.0) for point in points])
        if last - first >= EVIDENCE_RISE:
            return (
                f"{name} has risen from {first:.3g} to {last:.3g} of the right answers (means of "
                f"{WINDOW} logged steps): read them with `./reckon debug-rollouts`; the step's "
                "meaning is in reckon_verifier/README.md"
            )
    return ""


def gradient_explodes(points: list[Point], limits: Limits) -> str:
    """Detect a gradient norm of NaN, infinity or many times the median."""
    norms = _column(points, "grad_norm")
    last = norms[-limits.overflows :]
    if len(last) == limits.overflows and not any(map(math.isfinite, last)):
        return (
            f"the gradient's norm is {norms[-1]}: weights or losses are NaN or infinite. Lower "
            "grpo.learning_rate"
        )
    # Without the zeros of steps without signal, and without overflows, since NaN has no order.
    # Without other norms the median is infinite, so that no norm is above it.
    earlier = [norm for norm in norms[:-STREAK] if 0 < norm < math.inf]
    median = statistics.median(earlier or [math.inf])
    high = _steady_range(
        points, "grad_norm", lambda norm: math.inf > norm > EXPLOSION_FACTOR * median
    )
    # Fewer than `WINDOW` norms give no usual norm to compare with.
    if len(norms) < WINDOW or not high:
        return ""
    return (
        f"the gradient's norm has been {high} over {STREAK} logged steps, and {median:.3g} before: "
        "lower grpo.learning_rate or grpo.max_grad_norm"
    )


def sampler_apart(points: list[Point], limits: Limits) -> str:
    """Detect that sampler and trainer disagree from the start, on equal weights, beyond rounding.

    `sampler_drift` compares later gaps with the first one, and would not see this. Return the
    warning or ''.
    """
    first = _first_gap(points)
    if first <= limits.gap:
        return ""
    return (
        f"the sampler's log-probs are {first:.3g} nats per token from the trainer's at the start, "
        f"on equal weights, where rounding leaves less than {limits.gap:g}: one of them computes "
        "another model (dropout, positions, an engine's settings). Compare with "
        "rollout.engine=transformers"
    )


def sampler_drift(points: list[Point], limits: Limits) -> str:
    """Detect a gap between sampler and trainer of more than ten times its first value."""
    first = _first_gap(points)
    # An engine that samples with the policy itself has a first gap near 0 (2e-7 in float32), and
    # ten times that would make any rounding a drift.
    bound = DRIFT_FACTOR * max(first, ROUNDING)
    gaps = _steady_range(points, f"{GAP}/mean", lambda value: value > bound)
    if not gaps:
        return ""
    return (
        f"the sampler's log-probs have been {gaps} nats per token from the trainer's over "
        f"{STREAK} logged steps, from {first:.3g} at the start, when their weights were the same: "
        "it rounds otherwise than it did, or is on other weights. Compare with "
        "rollout.engine=transformers"
    )


CHECKS: dict[str, Callable[[list[Point], Limits], str]] = {
    "reward_at_minimum": reward_at_minimum,
    "no_signal": no_signal,
    "entropy_collapse": entropy_collapse,
    "at_the_limit": at_the_limit,
    "reward_hacking": reward_hacking,
    "evidence_jumps": evidence_jumps,
    "gradient_explodes": gradient_explodes,
    "sampler_apart": sampler_apart,
    "sampler_drift": sampler_drift,
}
"""Checks by kind of sign: each returns its text, '' for no sign."""


def _first_gap(points: list[Point]) -> float:
    """Return the mean gap of the first point that has one, else 0."""
    # Before the first update, when sampler and trainer have the same weights.
    return next((point[f"{GAP}/mean"] for point in points if f"{GAP}/mean" in point), 0.0)


def _column(points: list[Point], name: str) -> list[float]:
    return [point[name] for point in points if name in point]


def _steady_range(points: list[Point], name: str, test: Callable[[float], bool]) -> str:
    """Format the range of the last `STREAK` values, "0.1 to 0.2", if all pass `test`; else ''."""
    values = _column(points, name)[-STREAK:]
    if len(values) < STREAK or not all(map(test, values)):
        return ""
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def _window_means(values: list[float]) -> tuple[float, float]:
    return sum(values[:WINDOW]) / WINDOW, sum(values[-WINDOW:]) / WINDOW
