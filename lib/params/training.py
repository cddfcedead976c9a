"""Schema of the sections of params.yaml on training.

`sft`, `grpo` and `dpo` have a common base, `Optimisation`. `validation`, `rollout` and `reward` are
the settings for sampling and scoring during training.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from lib.core.plugins import is_plugin, label
from lib.objectives import LOSSES, Baseline, LossFacts
from lib.params.data import Once, first_repeated
from lib.params.section import (
    BelowOne,
    Count,
    EngineName,
    Name,
    NonNegative,
    Positive,
    PositiveFloat,
    Section,
    Share,
    one_of,
)
from lib.rewards.functions import STACKS, reward_names, rewards_of


class AdamW(Section):
    """The optimiser's settings, in the section `optimizer` once, or in a phase as its own."""

    lr_schedule: Literal["constant", "linear", "cosine"]
    """Shape of the decay after warm-up."""
    warmup_ratio: Share
    """Share of the steps with a rising learning rate."""
    # Below 1, since AdamW's bias correction at step t divides by 1 − decay^t.
    adam_beta1: BelowOne
    """Decay of the gradient's running mean."""
    adam_beta2: BelowOne
    """Decay of the squared gradient's running mean."""
    weight_decay: NonNegative
    """Decoupled weight decay."""
    max_grad_norm: PositiveFloat
    """Largest gradient norm; larger gradients are scaled down to it."""


class Optimisation(AdamW):
    """The settings common to SFT, GRPO and DPO."""

    micro_batch_size: Positive
    """Rows per forward pass (examples, completions, pairs); divides an optimiser step's rows."""
    optimizer: Literal["adamw", "memory_efficient_adamw"]
    """`memory_efficient_adamw` is the same AdamW with its state in CPU memory."""
    learning_rate: PositiveFloat
    """Peak learning rate of AdamW."""
    logging_steps: Positive
    """Optimiser steps between two points of the curves."""
    save_steps: Count
    """Optimiser steps between two checkpoints to resume from; 0 for none."""
    keep_checkpoints: Count
    """Number of last checkpoints that stay, complete, in data/scratch after the run."""
    eval_steps: Count
    """Optimiser steps between two validations by generation (`validation`); 0 for none."""
    select: Literal["last", "best"]
    """The checkpoint to hand on: the last, or the one with the highest answer accuracy on the
    held-back set among validation's points, step 0 included."""

    @property
    def skipped(self) -> str:
        """The reason for skipping the phase, in words; '' if it runs."""
        return ""

    @property
    def steps_per_rollout(self) -> int:
        """The number of optimiser steps on the same completions; 1 for a phase without rollouts."""
        return 1


class Sft(Optimisation):
    """Supervised fine-tuning on worked solutions, with the loss on completions only."""

    num_epochs: Count
    """Passes over the data; 0 skips the phase."""
    batch_size: Positive
    """Examples per optimiser step."""
    group_by_length: bool
    """Batch examples of similar length: less padding, a less random order."""
    packing: bool
    """Put several examples in a row of max_seq_length; the batch sizes then count such rows."""
    adapter: str
    """Folder of a trained LoRA adapter to use instead of training; '' to train. Give another
    adapter another path: no stage depends on the files."""

    @property
    def skipped(self) -> str:
        if self.adapter:
            return f"sft.adapter is {self.adapter}"
        return "" if self.num_epochs else "sft.num_epochs is 0"

    def contradictions(self) -> Iterator[str]:
        yield from indivisible(
            f"batch_size={self.batch_size}", self.batch_size, self.micro_batch_size
        )


class Validation(Section):
    """Greedy completions graded during training.

    With settings of its own, SFT does not depend on `rollout` and `reward`.
    """

    sets: Annotated[tuple[Name, ...], Field(min_length=1), Once]
    """Benchmarks of `prepare`, or `validation` for the held-back problems; the first is the
    headline."""
    num_problems: Positive
    """Most problems of each set, drawn by content hash."""
    num_samples: Count
    """Completions sampled per problem at temperature 1, for pass@1, pass@k and the share of
    distinct ones; 0 for greedy answers only."""
    engine: EngineName
    """Engine that generates the completions; it gets the policy's weights before each
    validation."""
    max_new_tokens: Positive
    """Longest completion."""
    batch_size: Positive
    """Sequences generated at a time."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)]
    """vLLM's share of a GPU beside the policy, in process or as `./reckon vllm-server`. Not used on
    a CPU, nor if GRPO rolls out with vLLM too: that engine then serves both."""
    stack: Annotated[str, one_of(STACKS)]
    """Rewards that make up the average total reward."""
    weights: Annotated[tuple[float, ...], Field(min_length=1)]
    """One weight for each function of `stack`."""


class RolloutSampling(Section):
    """Sampling of GRPO's rollouts and of DPO's pairs."""

    engine: EngineName
    """Engine that generates the completions."""
    device: Annotated[str, Field(pattern=r"^(cuda:\d+)?$")]
    """GPU of a vLLM in this process for rollouts and validation, like `cuda:1`; '' for the
    trainer's GPU."""
    temperature: PositiveFloat
    """Softmax temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)]
    """Nucleus of the sampling distribution; 1 for all of it."""
    top_k: Count
    """Number of most probable tokens to sample from; 0 for all."""
    min_p: Share
    """Least probability, relative to the most probable token; 0 for none."""
    max_new_tokens: Positive
    """Longest completion; in GRPO at most model.max_seq_length minus the longest prompt of the
    problems that `prepare` kept."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)]
    """vLLM's share of a GPU beside the policy, in process or as `./reckon vllm-server`; not used on
    a CPU."""

    @property
    def decoding(self) -> dict[str, Any]:
        """The keyword arguments of `lib.engines.base.Sampling`."""
        return self.model_dump(include={"max_new_tokens", "temperature", "top_p", "top_k", "min_p"})


class Reward(Section):
    """The reward of a completion."""

    stack: Annotated[str, one_of(STACKS)]
    """Named stack of reward functions (lib/rewards/stacks)."""
    weights: tuple[float, ...]
    """One weight per function: the stack's functions first, then `extra`. [] for no reward at all,
    beside a `grpo.teacher`."""
    extra: tuple[Annotated[str, one_of(reward_names, role="rewards")], ...]
    """Further reward functions by name, or as `plugins/rewards/file.py:name`."""
    # DAPO's soft punishment (arXiv:2503.14476, equation 13).
    overlong_cache_tokens: Count
    """`overlong`: tokens before the length limit over which the penalty rises."""
    # The repetition and length rewards are those of arXiv:2502.03373.
    repetition_ngram: Positive
    """`repetition`: words per n-gram."""
    cosine_correct: tuple[float, float]
    """`cosine_length`: value of the shortest and of the longest right answer."""
    cosine_wrong: tuple[float, float]
    """`cosine_length`: value of the shortest and of the longest wrong answer."""

    @property
    def names(self) -> tuple[str, ...]:
        return (*rewards_of(self.stack), *self.extra) if self.weights else ()

    def contradictions(self) -> Iterator[str]:
        if twice := first_repeated([label(name) for name in self.names]):
            yield f"extra: two functions are named `{twice}`; rename or remove one"

    def settings(self, *, max_completion_tokens: int) -> dict[str, Any]:
        shaping = self.model_dump(exclude={"stack", "weights", "extra"})
        return {**shaping, "max_completion_tokens": max_completion_tokens}


class Grpo(Optimisation):
    """Group Relative Policy Optimization (arXiv:2402.03300)."""

    trainer: Literal["reckon", "trl"]
    """reckon's own trainer, or TRL's `GRPOTrainer` as it is."""
    max_steps: Count
    """Optimiser steps; 0 skips the phase."""
    prompts_per_step: Positive
    """Problems per step (P)."""
    group_size: Positive
    """Completions per problem (G)."""
    num_iterations: Positive
    """Optimiser steps on one batch of rollouts."""
    updates_per_rollout: Positive
    """Optimiser steps that share one generation's P * G completions; above 1 only with `trainer:
    trl`."""
    shuffle: bool
    """Draw problems in random order; false keeps the order that `prepare` wrote."""
    curriculum: Literal["none", "retire", "pool"]
    """How often a problem is drawn, by the share of right answers in its last group. `none`: once
    an epoch. `retire`: no more from curriculum_high on, while enough others are left. `pool`: a
    problem outside of the two bounds a quarter as often as the others."""
    curriculum_low: Share
    """Share of right answers up to which a problem is too hard."""
    curriculum_high: Share
    """Share of right answers from which a problem is too easy; above curriculum_low."""
    loss: Annotated[str, one_of(tuple(LOSSES), role="objectives")]
    """Average of token losses (TRL's names). `cispo` bounds a token's weight instead of dropping
    its gradient (arXiv:2506.13585); `dppo` drops it where a token's probability has moved by more
    than epsilon (arXiv:2602.04879); `reinforce` is −A·log π without ratio or clipping."""
    advantage: Annotated[str, one_of(get_args(Baseline), role="objectives")]
    """`none`: the rewards themselves. `mean`: rewards minus the group's mean. `group`, `batch`: the
    same, divided by the standard deviation of the group or batch. `rloo`: rewards minus the mean of
    the group's other completions. See docs/objectives.md."""
    reward_aggregation: Literal["sum", "gdpo"]
    """`sum`: advantages of the weighted sum of rewards. `gdpo` (arXiv:2601.05242): normalise each
    reward in its group, then their sum in the batch."""
    importance_level: Literal["token", "sequence"]
    """One probability ratio per token, or per completion (GSPO, arXiv:2507.18071)."""
    epsilon: PositiveFloat
    """Clipping of the probability ratio, below and, unless epsilon_high is set, above."""
    epsilon_high: NonNegative
    """Upper clipping (DAPO's clip-higher, arXiv:2503.14476); 0 for the same as epsilon."""
    delta: NonNegative
    """Largest ratio of a completion with negative advantage (INTELLECT-2, arXiv:2505.07291), above
    1 + epsilon_high; 0 for none."""
    sampler_correction: Literal[
        "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"
    ]
    """Importance weight π/q, the policy's probability over the engine's, of a token or completion
    from an engine with its own weights: truncated at cap and floor, or masked outside of them
    (TRL's names)."""
    correction_cap: Annotated[float, Field(ge=1)]
    """Cap of the importance weight; a weight of 1 is equal probability in trainer and engine."""
    correction_floor: Annotated[float, Field(ge=0, lt=1)]
    """Floor of the importance weight (IcePop, arXiv:2510.18855); 0 for none."""
    beta: NonNegative
    """Coefficient of the KL penalty towards the SFT checkpoint; 0 for none."""
    kl_weighted: bool
    """Multiply the KL estimate by the probability ratio, so that its gradient is unbiased
    (DeepSeek-V3.2, arXiv:2512.02556); false is GRPO's own estimate."""
    teacher: str
    """Model whose log-probs of the policy's own tokens are added to the advantages (on-policy
    distillation, arXiv:2306.13649): a checkpoint below data/models, a folder, a GGUF file or a Hub
    id, with the policy's tokenizer; '' for none."""
    teacher_coef: NonNegative
    """Coefficient of the reverse KL towards the teacher; above 0 if and only if there is one."""
    teacher_kl: Literal["sampled", "full"]
    """`sampled`: estimate the KL from each sampled token's log-probs. `full`: compute it over the
    vocabulary, without noise, for one more product with both output layers."""
    teacher_top_k: Count
    """With `full`, number of the teacher's likeliest tokens that are compared one by one, the rest
    as one; 0 for all."""
    entropy_coef: NonNegative
    """Coefficient of the entropy bonus; 0 for none. With entropy_target, the initial value."""
    entropy_target: NonNegative
    """Target entropy in nats per token that adapts the coefficient (Skywork-OR1, arXiv:2505.22312);
    0 keeps the coefficient fixed."""
    cast_lm_head_to_fp32: bool
    """Compute the policy's logits in float32 for any weight type (MiniMax-M1, arXiv:2506.13585)."""
    average: Literal["loss", "prompt"]
    """`loss`: as the loss averages. `prompt`: the mean over problems of the mean over their tokens
    (ScaleRL, arXiv:2510.13786), for losses that divide by the step's tokens."""
    divide_by: Literal["all", "signal"]
    """`all`: a group without signal, all advantages 0, counts in the loss's divisor, so that the
    gradient shrinks as problems are solved. `signal`: such groups are left out of the loss."""
    mask_truncated: bool
    """Mask completions cut at the length limit out of the loss (DAPO)."""
    dynamic_sampling: Count
    """Most rounds that replace groups of equal rewards by groups of newly drawn problems (DAPO),
    which may be in the step already; 0 keeps all groups."""
    dynamic_sampling_fallback: Literal["error", "train"]
    """If a step still has groups of equal rewards after all rounds: `error` ends the run, `train`
    trains on them. The curve has the share of such groups."""
    log_problems: Count
    """Problems per step whose completions are logged; 0 for none."""

    @property
    def skipped(self) -> str:
        return "" if self.max_steps else "grpo.max_steps is 0"

    @property
    def loss_facts(self) -> LossFacts:
        """The facts about the loss; a plugin's is averaged like `dapo` and clips nothing."""
        # Nothing else is known of a plugin's loss before it runs.
        return LOSSES.get(self.loss, LossFacts("step_tokens", clips=False))

    @property
    def batch_size(self) -> int:
        """The number of completions in an optimiser step."""
        return self.prompts_per_step * self.group_size // self.updates_per_rollout

    @property
    def steps_per_rollout(self) -> int:
        return self.num_iterations * self.updates_per_rollout

    def contradictions(self) -> Iterator[str]:
        yield from self._step_faults()
        yield from self._objective_faults()

    def _step_faults(self) -> Iterator[str]:
        if self.curriculum_low >= self.curriculum_high:
            yield (
                f"curriculum_low={self.curriculum_low:g} is not below "
                f"curriculum_high={self.curriculum_high:g}; 0.0 and 0.875 are usual"
            )
        if self.group_size < 2:
            yield f"group_size={self.group_size}; group-relative advantages need at least 2"
        # Optimiser steps on one generation's completions. A checkpoint holds no rollouts, so a run
        # can only resume between two generations.
        steps = self.steps_per_rollout
        if self.save_steps % steps:
            below = self.save_steps - self.save_steps % steps
            yield (
                f"save_steps={self.save_steps} falls between two generations of rollouts, where "
                f"nothing can be resumed exactly (num_iterations={self.num_iterations}, "
                f"updates_per_rollout={self.updates_per_rollout}); "
                f"use {below or 'none (0)'} or {below + steps}"
            )
        what = f"prompts_per_step={self.prompts_per_step} x group_size={self.group_size}"
        completions, updates = self.prompts_per_step * self.group_size, self.updates_per_rollout
        if completions % updates:
            yield from indivisible(what, completions, updates, key="updates_per_rollout")
        else:
            if updates > 1:
                what += f" / updates_per_rollout={updates}"
            # `batch_size`: completions per update.
            yield from indivisible(what, self.batch_size, self.micro_batch_size)

    def _objective_faults(self) -> Iterator[str]:
        # `gdpo` needs an advantage that divides by a deviation; a plugin may do that.
        may_divide = self.advantage == "group" or is_plugin(self.advantage)
        if self.reward_aggregation == "gdpo" and not may_divide:
            yield (
                f"reward_aggregation=gdpo divides by deviations, advantage={self.advantage} does "
                "not say how: use group, or reward_aggregation: sum"
            )
        # The lower bound of the clip is 1 − ε, and a probability ratio is always above 0.
        if self.epsilon >= 1 and self.loss_facts.clips:
            yield (
                f"epsilon={self.epsilon:g} with loss={self.loss} never clips a ratio from below: "
                "every ratio is above 0; use less than 1 (0.2 is usual), and epsilon_high for a "
                "wider range above"
            )
        # From the second iteration on, the completions are those of an older policy, and only the
        # probability ratio corrects for that.
        if not self.loss_facts.uses_ratio and self.num_iterations > 1:
            yield (
                f"num_iterations={self.num_iterations}; loss `{self.loss}` has no ratio to correct "
                "for rollouts of an older policy: use 1, or another loss"
            )
        # A plugin's loss computes its own ratios, per token or sequence.
        facts = self.loss_facts
        takes_ratio = facts.uses_ratio and not facts.masks_tokens and not is_plugin(self.loss)
        if self.importance_level == "sequence" and not takes_ratio:
            yield f"importance_level=sequence; loss `{self.loss}` takes no such ratio: use token"
        # With a negative advantage, the clip stops the gradient only at ratios below 1 − ε. `delta`
        # limits these completions' ratios from above, in losses that clip.
        if self.delta and (not self.loss_facts.clips or self.loss_facts.masks_tokens):
            yield f"delta={self.delta:g} has no effect with loss={self.loss}; set it to 0.0"
        if self.average == "prompt" and self.loss_facts.average != "step_tokens":
            yield f"average=prompt; loss `{self.loss}` has an average of its own: use dapo"
        if bool(self.teacher) != (self.teacher_coef > 0):
            yield (
                f"teacher={self.teacher or '(none)'} with teacher_coef={self.teacher_coef:g}; a "
                "teacher needs a coefficient above 0 (1.0 is usual), and a coefficient a teacher"
            )
        # A stage cannot depend on its own output, nor on what is made from it.
        if Path(self.teacher).name in ("grpo", "dpo", "export") and (
            Path(self.teacher).parent in (Path(), Path("data/models"))
        ):
            yield (
                f"teacher={self.teacher} is made after GRPO or by it; copy it to a folder of its "
                "own, such as data/hub/teacher"
            )
        if self.teacher and (self.divide_by == "signal" or is_plugin(self.loss)):
            yield "teacher: needs divide_by: all, and a loss that is no plugin"
        if self.divide_by == "signal" and self.loss == "bnpo":
            yield "divide_by=signal; `bnpo` divides by its micro-batch's tokens: use dapo"
        # epsilon_high 0: the same as epsilon.
        highest = 1 + (self.epsilon_high or self.epsilon)
        if self.delta and self.delta <= highest:
            yield (
                f"delta={self.delta:g} is not above 1 + epsilon_high = {highest:g}, where it would "
                "take the place of the clip; 4.0 is usual, 0.0 is none"
            )
        # Equal rewards then move the policy too, and there is nothing to replace.
        if self.dynamic_sampling and self.advantage == "none":
            yield (
                f"dynamic_sampling={self.dynamic_sampling}; with advantage `none` a group of equal "
                "rewards moves the policy too: use 0, or another advantage"
            )


class Pairs(Section):
    """Mining of preference pairs: a right against a wrong completion of one problem."""

    num_problems: Count
    """Number of GRPO problems to sample, from the start of the file; 0 for all."""
    num_completions: Annotated[int, Field(ge=2)]
    """Completions per problem, sampled with `rollout`'s settings."""
    max_per_problem: Positive
    """Most pairs from one problem."""
    batch_size: Positive
    """Sequences generated at a time; changes speed and memory, and rounding."""


class Dpo(Optimisation):
    """Direct preference optimisation (arXiv:2305.18290), an optional phase."""

    init: Annotated[tuple[Literal["sft", "grpo"], ...], Field(max_length=1)]
    """The checkpoint to sample pairs from and to start DPO from; [] for no DPO."""
    pairs: Pairs
    num_epochs: Count
    """Passes over the pairs; 0 skips the phase."""
    batch_size: Positive
    """Pairs per optimiser step."""
    beta: PositiveFloat
    """Strength of the KL constraint to the starting checkpoint."""
    loss: Literal[
        "sigmoid",
        "sigmoid_norm",
        "hinge",
        "ipo",
        "robust",
        "exo_pair",
        "nca_pair",
        "sppo_hard",
        "apo_zero",
        "apo_down",
    ]
    """Loss on the margin between the two completions (TRL's names)."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)]
    """`robust` and `exo_pair`: assumed share of pairs in the wrong order."""

    @property
    def skipped(self) -> str:
        return "" if self.num_epochs else "dpo.num_epochs is 0"

    def contradictions(self) -> Iterator[str]:
        yield from indivisible(
            f"batch_size={self.batch_size}", self.batch_size, self.micro_batch_size
        )
        # The loss `exo_pair` takes the logarithm of label_smoothing (trl 1.14): 0 has none.
        if self.loss == "exo_pair" and not self.label_smoothing:
            yield "loss=exo_pair needs label_smoothing above 0; 0.001 is usual"


def indivisible(
    what: str, total: int, part: int, *, key: str = "micro_batch_size"
) -> Iterator[str]:
    """Yield a message if `part` does not divide `total`, with the two nearest numbers that do.

    Example: "batch_size=30 = 30 rows a step cannot be cut into micro_batch_size=4; use 3 or 5".

    Args:
        what: the setting of the batch, like "batch_size=30", for the message.
        total: rows of the batch.
        part: the value of `key`, such as the rows of a micro-batch.
        key: the setting to change.
    """
    if total % part:
        divisors = [number for number in range(1, total + 1) if total % number == 0]
        divisors.sort(key=lambda divisor: abs(divisor - part))  # the nearest first
        numbers = " or ".join(map(str, sorted(divisors[:2])))
        yield f"{what} = {total} rows a step cannot be cut into {key}={part}; use {numbers}"
