"""What params.yaml may say: one frozen, strict model per section, no default anywhere.

A key is here if changing it should re-run a stage. Devices, tracking and launchers are environment.
"""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from lib.params.data import Prepare, first_repeated, under_raw
from lib.params.section import (
    HELD_BACK,
    Count,
    Name,
    NonNegative,
    Positive,
    PositiveFloat,
    Section,
    Share,
)
from lib.prompts.layouts import PLAIN
from lib.prompts.registry import PROMPT_FORMATS
from lib.prompts.system import FROM_FILE

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""`owner/model`."""

EngineName = Literal["transformers", "vllm", "vllm-server"]
"""What generates completions (lib/engines)."""


class Tiny(Section):
    """Shape of the random-weight Qwen3 model and its tokenizer."""

    vocab_size: Annotated[int, Field(ge=300)]
    """Upper bound on tokens, the format's tags included."""
    hidden_size: Positive
    """Width of the residual stream."""
    intermediate_size: Positive
    """Width of the MLP."""
    num_layers: Positive
    """Transformer blocks."""
    num_heads: Positive
    """Query heads."""
    num_kv_heads: Positive
    """Key-value heads, a divisor of num_heads."""
    head_dim: Annotated[int, Field(ge=2, multiple_of=2)]
    """Width of one head; rotary positions need an even number."""
    initializer_range: PositiveFloat
    """Standard deviation of the initial weights."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}"
            )
        return self


class Lora(Section):
    """Low-rank adapters (arXiv:2106.09685)."""

    rank: Count
    """Rank of the adapters; 0 trains all weights instead."""
    alpha: Positive
    """Scale: an adapter's output is multiplied by alpha / rank."""
    dropout: Share
    """Dropout before the adapters, in SFT; GRPO trains the policy that it samples, without."""
    target_modules: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of the linear layers that get an adapter."""


class Model(Section):
    """The base model and how it is held in memory."""

    name: str
    """Id on the Hub, or a folder in the Hub's layout; '' makes the model that `tiny` describes."""
    revision: str
    """Commit of a model on the Hub; '' where `name` is a folder or ''."""
    backend: Literal["transformers", "unsloth"]
    """What loads and trains the policy; `unsloth` needs a GPU."""
    tag_tokens: bool
    """Give a Hub model's tokenizer each tag of the prompt format as one new token."""
    dtype: Literal["float32", "bfloat16"]
    """Type of the weights while training."""
    mixed_precision: Literal["fp32", "bf16"]
    """`bf16` computes in bfloat16 over weights of `dtype`."""
    attention: Literal["eager", "sdpa", "flash_attention_2"]
    """Attention implementation."""
    gradient_checkpointing: bool
    """Recompute activations in the backward pass: less memory, a third more time."""
    max_seq_length: Positive
    """Tokens of prompt and completion together."""
    tiny: Tiny
    lora: Lora

    @model_validator(mode="after")
    def _unsloth_can(self) -> Self:
        if self.backend == "unsloth" and self.tag_tokens:
            raise ValueError("tag_tokens: backend unsloth cannot; set it to false")
        if self.backend == "unsloth" and self.attention != "sdpa":
            raise ValueError(
                f"attention={self.attention}: backend unsloth chooses its own; leave it at sdpa"
            )
        return self

    @model_validator(mode="after")
    def _revision_of_something(self) -> Self:
        if self.revision and not self.name:
            raise ValueError(f"revision={self.revision}: there is no name that it would be of")
        if self.revision and not HUB_ID.fullmatch(self.name):
            raise ValueError(
                f"name={self.name}: with a revision it is an id on the Hub, like `owner/model`; "
                "for a folder set revision to ''"
            )
        return self


def _file_under_raw(value: str) -> str:
    if value.startswith(FROM_FILE):
        under_raw(value.removeprefix(FROM_FILE))
    return value


class Prompt(Section):
    """How a problem is put to the model and its answer read."""

    format: Name
    """Name of a prompt format (lib/prompts)."""
    tags: Annotated[tuple[str, ...], Field(max_length=4)]
    """Four tags in place of the format's own; [] for those."""
    layout: Literal["plain", "chatml", "llama3"]
    """How turns become text: as they are, or as a family of instruct models has them."""
    system: Annotated[str, AfterValidator(_file_under_raw)]
    """System prompt; `format` for the format's own, `file:` and a path below data/raw."""

    def with_format(self, name: str) -> Self:
        """The same under another format, with that one's own tags and, if it has one, layout."""
        layout = "plain" if PROMPT_FORMATS[name].layout is not PLAIN else self.layout
        return self.model_copy(update={"format": name, "tags": (), "layout": layout})

    def rendering(self) -> dict[str, Any]:
        """What `lib.prompts.prompt_format` takes."""
        return {"name": self.format, "tags": self.tags, "layout": self.layout}


class Optimisation(Section):
    """What SFT, GRPO and DPO have in common."""

    optimizer: Literal["adamw", "memory_efficient_adamw"]
    """`memory_efficient_adamw` is the same AdamW with its state in CPU memory."""
    learning_rate: PositiveFloat
    """Peak learning rate of AdamW."""
    lr_schedule: Literal["constant", "linear", "cosine"]
    """Shape of the decay after warm-up."""
    warmup_ratio: Share
    """Share of the steps that the learning rate rises over."""
    adam_beta1: Share
    """Decay of the gradient's running mean."""
    adam_beta2: Share
    """Decay of the squared gradient's running mean."""
    weight_decay: NonNegative
    """Decoupled weight decay."""
    max_grad_norm: PositiveFloat
    """Gradients are scaled down to this norm."""
    logging_steps: Positive
    """Optimiser steps between two points of the curves."""
    save_steps: Count
    """Optimiser steps between two checkpoints to resume from; 0 for none."""
    keep_checkpoints: Count
    """Of those, how many of the last stay in data/scratch after the run."""
    eval_steps: Count
    """Optimiser steps between two validations by generation (`validation`); 0 for none."""

    @property
    def skipped(self) -> str:
        """Why the phase is skipped, in words; '' where it is not."""
        return ""

    @model_validator(mode="after")
    def _kept_are_saved(self) -> Self:
        if self.keep_checkpoints and not self.save_steps:
            raise ValueError(
                f"keep_checkpoints={self.keep_checkpoints} keeps nothing while save_steps is 0"
            )
        return self


class Sft(Optimisation):
    """Supervised fine-tuning on worked solutions, loss on completions alone."""

    num_epochs: Count
    """Passes over the data; 0 skips the phase."""
    batch_size: Positive
    """Examples per optimiser step."""
    micro_batch_size: Positive
    """Examples per forward pass, a divisor of batch_size."""
    group_by_length: bool
    """Batch examples of like length: less padding, a less random order."""
    packing: bool
    """Put several examples in a row of max_seq_length; the batch sizes then count such rows."""

    @property
    def skipped(self) -> str:
        return "" if self.num_epochs else "sft.num_epochs is 0"

    @model_validator(mode="after")
    def _micro_batches(self) -> Self:
        check_divides(
            f"batch_size={self.batch_size}",
            self.batch_size,
            self.micro_batch_size,
            unit="examples",
        )
        return self


class Validation(Section):
    """Greedy completions graded during training; a section of its own, so that another reward or
    benchmark leaves SFT as it is."""

    sets: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Benchmarks of `prepare`, or `validation` for what it held back; the first is the headline."""
    num_problems: Positive
    """Most problems of each set, drawn by content hash."""
    max_new_tokens: Positive
    """Longest completion."""
    batch_size: Positive
    """Sequences generated at a time."""
    stack: Name
    """Rewards that make up the average total reward."""
    weights: Annotated[tuple[float, ...], Field(min_length=1)]
    """One for each of the stack's functions."""

    @field_validator("sets")
    @classmethod
    def _once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if twice := first_repeated(names):
            raise ValueError(f"`{twice}` stands there twice")
        return names


class Rollout(Section):
    """Sampling during reinforcement."""

    engine: EngineName
    """What generates the completions."""
    temperature: PositiveFloat
    """Softmax temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)]
    """Nucleus of the distribution that is sampled from; 1 for all of it."""
    top_k: Count
    """Most probable tokens that are sampled from; 0 for all."""
    min_p: Share
    """Least probability, relative to the most probable token; 0 for none."""
    max_new_tokens: Positive
    """Longest completion."""
    max_logp_difference: PositiveFloat
    """Nats per token between the sampler's and the trainer's log-probs, on average over a batch;
    beyond it the sampler is on other weights than the policy, and the run ends."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)]
    """Share of a GPU that vLLM takes beside the policy; not read on a CPU and by other engines."""


class Reward(Section):
    """What a completion is rewarded for."""

    stack: Name
    """Named stack of reward functions (lib/verifier/rewards)."""
    weights: Annotated[tuple[float, ...], Field(min_length=1)]
    """One weight for each function, those of the stack first, then `extra`."""
    extra: tuple[Name, ...]
    """Further reward functions by name."""
    overlong_cache_tokens: Count
    """`overlong`: tokens before the longest completion over which the punishment rises."""
    repetition_ngram: Positive
    """`repetition`: words per n-gram."""
    repetition_max_penalty: Annotated[float, Field(le=0)]
    """`repetition`: value of a completion that repeats one n-gram only."""
    cosine_correct: tuple[float, float]
    """`cosine_length`: value of the shortest and of the longest right answer."""
    cosine_wrong: tuple[float, float]
    """`cosine_length`: value of the shortest and of the longest wrong answer."""

    def settings(self, *, max_completion_tokens: int) -> dict[str, Any]:
        """What `lib.verifier.rewards.build_rewards` takes beside names and format."""
        shaping = self.model_dump(exclude={"stack", "weights", "extra"})
        return {**shaping, "max_completion_tokens": max_completion_tokens}


class Grpo(Optimisation):
    """Group Relative Policy Optimization (arXiv:2402.03300)."""

    max_steps: Count
    """Optimiser steps; 0 skips the phase."""
    prompts_per_step: Positive
    """Problems per step (P)."""
    group_size: int
    """Completions per problem (G)."""
    micro_batch_size: Positive
    """Completions per forward pass, a divisor of P * G."""
    num_iterations: Positive
    """Optimiser steps on one batch of rollouts."""
    shuffle: bool
    """Draw problems in random order; false keeps the order that `prepare` wrote."""
    loss: Literal["grpo", "bnpo", "dr_grpo", "dapo", "reinforce"]
    """How token losses are averaged (TRL's names), or −A·log π without ratio or clipping."""
    advantage: Literal["none", "mean", "group", "batch", "rloo"]
    """Rewards as they are, minus their group's mean (divided by the deviation of the group or the
    batch, or not), or minus the mean of the group's others (docs/objectives.md)."""
    importance_level: Literal["token", "sequence"]
    """One probability ratio per token, or per completion (GSPO, arXiv:2507.18071)."""
    epsilon: PositiveFloat
    """Clipping of the probability ratio, below and, unless epsilon_high is set, above."""
    epsilon_high: NonNegative
    """Upper clipping (DAPO's clip-higher, arXiv:2503.14476); 0 for the same as epsilon."""
    beta: NonNegative
    """Coefficient of the KL penalty towards the SFT checkpoint; 0 for none."""
    kl_weighted: bool
    """Multiply the KL estimate by the probability ratio, which makes its gradient unbiased
    (DeepSeek-V3.2, arXiv:2512.02556); false is GRPO's own."""
    mask_truncated: bool
    """Leave completions that ran into the longest length out of the loss (DAPO)."""
    dynamic_sampling: Count
    """Most rounds in which groups with equal rewards are replaced by other problems' (DAPO); a step
    that still has one then ends the run. 0 keeps all groups."""

    @property
    def skipped(self) -> str:
        return "" if self.max_steps else "grpo.max_steps is 0"

    @model_validator(mode="after")
    def _groups(self) -> Self:
        if self.group_size < 2:
            raise ValueError(
                f"group_size={self.group_size}; group-relative advantages need at least 2"
            )
        if self.save_steps % self.num_iterations:
            below = self.save_steps - self.save_steps % self.num_iterations
            raise ValueError(
                f"save_steps={self.save_steps} falls between two generations of rollouts, where "
                f"nothing can be resumed exactly (num_iterations={self.num_iterations}); "
                f"use {below or 'none (0)'} or {below + self.num_iterations}"
            )
        completions = self.prompts_per_step * self.group_size
        check_divides(
            f"prompts_per_step={self.prompts_per_step} x group_size={self.group_size}",
            completions,
            self.micro_batch_size,
            unit="completions",
        )
        return self

    @model_validator(mode="after")
    def _reinforce_is_on_policy(self) -> Self:
        if self.loss == "reinforce" and self.num_iterations > 1:
            raise ValueError(
                f"num_iterations={self.num_iterations}; loss `reinforce` has no ratio to correct "
                "for rollouts of an older policy: use 1, or another loss"
            )
        if self.loss == "reinforce" and self.importance_level == "sequence":
            raise ValueError("importance_level=sequence; loss `reinforce` has no ratio: use token")
        return self

    @model_validator(mode="after")
    def _dropped_groups_teach_nothing(self) -> Self:
        if self.dynamic_sampling and self.advantage == "none":
            raise ValueError(
                f"dynamic_sampling={self.dynamic_sampling}; with advantage `none` a group of equal "
                "rewards moves the policy too: use 0, or another advantage"
            )
        return self


class Pairs(Section):
    """Mining of preference pairs: a right against a wrong completion of one problem."""

    num_problems: Count
    """GRPO problems that are sampled, the first so many of the file; 0 for all."""
    num_completions: Annotated[int, Field(ge=2)]
    """Completions per problem, sampled as `rollout` says."""
    max_per_problem: Positive
    """Pairs that one problem may give."""
    batch_size: Positive
    """Sequences generated at a time; changes speed and memory, and rounding."""


class Dpo(Optimisation):
    """Direct preference optimisation (arXiv:2305.18290), an optional phase."""

    init: Annotated[tuple[Literal["sft", "grpo"], ...], Field(max_length=1)]
    """The checkpoint that is sampled for pairs and trained from; [] for no such phase."""
    pairs: Pairs
    num_epochs: Count
    """Passes over the pairs; 0 skips the phase."""
    batch_size: Positive
    """Pairs per optimiser step."""
    micro_batch_size: Positive
    """Pairs per forward pass, a divisor of batch_size."""
    beta: PositiveFloat
    """Strength of the tie to the starting checkpoint."""
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
    """What is made of the margin between the two completions (TRL's names)."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)]
    """`robust` and `exo_pair`: share of pairs that are taken to be the wrong way round."""

    @property
    def skipped(self) -> str:
        return "" if self.num_epochs else "dpo.num_epochs is 0"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_divides(
            f"batch_size={self.batch_size}", self.batch_size, self.micro_batch_size, unit="pairs"
        )
        if self.loss == "exo_pair" and not self.label_smoothing:
            raise ValueError("loss=exo_pair needs label_smoothing above 0; 0.001 is usual")
        if self.label_smoothing and self.loss not in {"robust", "exo_pair"}:
            raise ValueError(
                f"label_smoothing={self.label_smoothing:g} has no effect with loss={self.loss}; "
                "set it to 0.0, or choose robust or exo_pair"
            )
        return self


Checkpoint = Literal["base", "sft", "grpo", "dpo"]


class Decoding(Section):
    """How a benchmark is answered: greedily, by sampling, or both."""

    greedy: bool
    """One completion per problem at temperature 0."""
    num_samples: Count
    """Sampled completions per problem (k of pass@k and maj@k); 0 for none."""
    temperature: PositiveFloat
    """Temperature of the sampled completions."""
    top_p: Annotated[float, Field(gt=0, le=1)]
    """Nucleus of the sampled completions."""
    max_new_tokens: Positive
    """Longest completion."""

    @model_validator(mode="after")
    def _measures_something(self) -> Self:
        if not self.greedy and not self.num_samples:
            raise ValueError("greedy=false and num_samples=0 leave nothing to measure")
        return self


class Override(Decoding):
    """The decoding of one benchmark, in place of that of all."""

    benchmark: Name
    """Which of `evaluate.benchmarks`."""


class Evaluate(Decoding):
    """How checkpoints are measured."""

    checkpoints: Annotated[tuple[Checkpoint, ...], Field(min_length=1)]
    """Checkpoints that are evaluated, in the order of training."""
    benchmarks: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Sets of held-out problems; the first is the headline."""
    engine: EngineName
    """What generates the completions; changes speed, and rounding."""
    overrides: tuple[Override, ...]
    """Benchmarks that are answered in another way; [] for none."""
    batch_size: Positive
    """Sequences generated at a time; changes speed and memory, and rounding."""

    @field_validator("checkpoints", "benchmarks")
    @classmethod
    def _once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if twice := first_repeated(names):
            raise ValueError(f"`{twice}` stands there twice")
        return names

    @model_validator(mode="after")
    def _overrides_apply(self) -> Self:
        named = [override.benchmark for override in self.overrides]
        if twice := first_repeated(named):
            raise ValueError(f"overrides: `{twice}` stands there twice")
        for name in named:
            if name not in self.benchmarks:
                raise ValueError(
                    f"overrides: `{name}` is not in benchmarks ({', '.join(self.benchmarks)})"
                )
        return self

    def of_first(self) -> Self:
        """The first benchmark alone."""
        first = self.benchmarks[0]
        kept = tuple(override for override in self.overrides if override.benchmark == first)
        return self.model_copy(update={"benchmarks": (first,), "overrides": kept})

    def decoding(self, benchmark: str) -> Decoding:
        """How `benchmark` is answered."""
        named = (override for override in self.overrides if override.benchmark == benchmark)
        return next(named, self)


class Sensitivity(Section):
    """The same weights under other prompt formats, on the first of `evaluate.benchmarks`."""

    formats: tuple[Name, ...]
    """Prompt formats (lib/prompts) beside the one that was trained; [] for none."""
    checkpoint: Literal["base", "sft", "grpo"]
    """Whose weights; it has to be evaluated too."""


class Export(Section):
    """What leaves the pipeline."""

    checkpoint: Checkpoint
    """The checkpoint that is exported; it has to be evaluated too."""
    dtype: Literal["float32", "bfloat16", "float16"]
    """Type of the exported weights."""
    max_shard_size: Annotated[str, Field(pattern=r"^[1-9]\d*(KB|MB|GB)$")]
    """Largest file of weights; more go into several."""
    adapter: bool
    """Keep a LoRA adapter by itself too, in `adapter/`; nothing where all weights were trained."""
    gguf: Literal["none", "f16", "q8_0", "q6_k", "q5_k_m", "q4_k_m"]
    """A GGUF file for llama.cpp in `gguf/`; what `q..._k` needs is its `llama-quantize`."""
    license: Annotated[str, Field(min_length=1)]
    """Licence that the model card states, as the Hub abbreviates it; the base model's binds you."""
    language: Annotated[str, Field(pattern=r"^[a-z]{2,3}$")]
    """Language that the model card states, as ISO 639 abbreviates it."""
    num_verified: Positive
    """Held-out prompts on which the export must repeat the checkpoint's greedy tokens."""


class Params(Section):
    """The whole of params.yaml."""

    seed: Annotated[int, Field(ge=0, le=2**32 - 1)]
    """Seed of data, weights, order and sampling."""
    torch_threads: Positive
    """CPU threads of torch; another number rounds differently."""
    model: Model
    prompt: Prompt
    prepare: Prepare
    validation: Validation
    sft: Sft
    rollout: Rollout
    reward: Reward
    grpo: Grpo
    dpo: Dpo
    evaluate: Evaluate
    sensitivity: Sensitivity
    export: Export

    @model_validator(mode="after")
    def _prompts_have_room(self) -> Self:
        longest = self.model.max_seq_length
        named: dict[str, Rollout | Decoding | Validation] = {
            "rollout": self.rollout,
            "evaluate": self.evaluate,
        }
        named["validation"] = self.validation
        named |= {f"evaluate.overrides.{o.benchmark}": o for o in self.evaluate.overrides}
        for key, section in named.items():
            if section.max_new_tokens >= longest:
                raise ValueError(
                    f"{key}.max_new_tokens: {section.max_new_tokens} is not below "
                    f"model.max_seq_length={longest}, which holds prompt and completion together"
                )
        return self

    @model_validator(mode="after")
    def _validation_is_there(self) -> Self:
        if HELD_BACK in self.validation.sets and not self.prepare.validation_share:
            raise ValueError(
                "validation.sets: nothing is held back while prepare.validation_share is 0; "
                "raise it, or name a benchmark"
            )
        return self

    @model_validator(mode="after")
    def _order_is_kept(self) -> Self:
        if self.prepare.grpo.difficulty.easy_first and self.grpo.shuffle:
            raise ValueError(
                "prepare.grpo.difficulty.easy_first: has no effect while grpo.shuffle is true; "
                "set that to false"
            )
        return self

    @property
    def starts(self) -> dict[str, str]:
        """The checkpoint that each phase of this run started from, by the phase's own."""
        starts = {"sft": "base", "grpo": "sft"}
        return starts | ({"dpo": self.dpo.init[0]} if self.dpo.init else {})

    @model_validator(mode="after")
    def _preferred_is_measured(self) -> Self:
        measured = self.evaluate.checkpoints
        if not self.dpo.init:
            if "dpo" in measured:
                raise ValueError(
                    "evaluate.checkpoints: `dpo` is there, but dpo.init is [], so that nothing "
                    "makes it; set dpo.init to [sft] or [grpo]"
                )
            return self
        for needed, why in (
            ("dpo", "so that nobody would know what it did"),
            (self.dpo.init[0], "which what it changed is measured against"),
        ):
            if needed not in measured:
                raise ValueError(
                    f"evaluate.checkpoints: dpo.init is [{self.dpo.init[0]}] and `{needed}` is not "
                    f"there, {why}; add it"
                )
        return self

    @model_validator(mode="after")
    def _formats_are_others(self) -> Self:
        formats = self.sensitivity.formats
        if twice := first_repeated((self.prompt.format, *formats)):
            raise ValueError(
                f"sensitivity.formats: `{twice}` stands there twice"
                if formats.count(twice) > 1
                else f"sensitivity.formats: `{twice}` is prompt.format, which `evaluate` measures"
            )
        if formats and self.sensitivity.checkpoint not in self.evaluate.checkpoints:
            raise ValueError(
                f"sensitivity.checkpoint: `{self.sensitivity.checkpoint}` is not in "
                f"evaluate.checkpoints ({', '.join(self.evaluate.checkpoints)})"
            )
        return self

    @model_validator(mode="after")
    def _exported_is_measured(self) -> Self:
        if self.export.checkpoint not in self.evaluate.checkpoints:
            raise ValueError(
                f"export.checkpoint: `{self.export.checkpoint}` is not in evaluate.checkpoints "
                f"({', '.join(self.evaluate.checkpoints)}); the model card needs its numbers"
            )
        return self


def check_divides(what: str, total: int, part: int, *, unit: str) -> None:
    """Refuse micro-batches that do not tile a batch, naming the nearest that do."""
    if total % part == 0:
        return
    divisors = [number for number in range(1, total + 1) if total % number == 0]
    below = max(number for number in divisors if number < part or number == 1)
    above = min(number for number in divisors if number > part or number == total)
    raise ValueError(
        f"{what} = {total} {unit} a step cannot be cut into micro_batch_size={part}; "
        f"use {below} or {above}"
    )
