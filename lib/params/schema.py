"""What params.yaml may say: one frozen, strict model per section, no default anywhere.

A key is here if changing it should re-run a stage. Devices, tracking and launchers are environment.
The sections stand in `model`, `data`, `training` and `measuring`; here they become the whole, with
what they owe each other.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from lib.engines.registry import ENGINES
from lib.params.data import Prepare
from lib.params.measuring import Decoding, Evaluate, Export
from lib.params.model import Model, Prompt, lost_updates
from lib.params.section import HELD_BACK, Positive, Section
from lib.params.training import (
    Dpo,
    Grpo,
    Reward,
    RolloutSampling,
    Sft,
    Validation,
)
from lib.plugins import is_plugin
from lib.prompts import PROMPT_FORMATS, prompt_format

ACCEPTABLE_LOSS = 0.05
"""Share of bfloat16 weights that may stay as they were; 2e-4 on full weights is the first below."""


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
    rollout: RolloutSampling
    reward: Reward
    grpo: Grpo
    dpo: Dpo
    evaluate: Evaluate
    export: Export

    @model_validator(mode="after")
    def _prompts_have_room(self) -> Self:
        longest = self.model.max_seq_length
        named: dict[str, RolloutSampling | Decoding | Validation] = {
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
    def _unsloth_can_share(self) -> Self:
        """What Unsloth's `fast_inference` refuses (unsloth 2026.10.7)."""
        engine = self.rollout.engine
        if self.model.backend != "unsloth" or not ENGINES[engine].below_unsloth:
            return self
        if not self.model.lora.rank:
            raise ValueError(
                f"rollout.engine={engine}: backend unsloth shares its weights with vLLM under LoRA "
                "alone; set model.lora.rank, or rollout.engine to transformers"
            )
        if self.model.dtype != "bfloat16":
            raise ValueError(
                f"model.dtype={self.model.dtype}: backend unsloth shares weights of 16 bits alone "
                "with vLLM; set it to bfloat16, or rollout.engine to transformers"
            )
        return self

    @model_validator(mode="after")
    def _device_is_taken(self) -> Self:
        """An engine on the policy's GPU, or in a server, would ignore it silently."""
        device, model, grpo = self.rollout.device, self.model, self.grpo
        rollouts, validation = ENGINES[self.rollout.engine], ENGINES[self.validation.engine]
        # GRPO's validation is then on the engine of its rollouts.
        shared = model.backend == "unsloth" and rollouts.below_unsloth
        own = not (grpo.skipped or shared or grpo.trainer == "trl")
        phases: list[Sft | Grpo | Dpo] = [self.sft]
        if not shared:
            phases.append(grpo)
        if self.dpo.init:
            phases.append(self.dpo)
        validates = any(not phase.skipped and phase.eval_steps for phase in phases)
        if device and not (
            (own and rollouts.takes_device) or (validates and validation.takes_device)
        ):
            kind = " on the policy's own weights (backend unsloth)" if shared else ""
            raise ValueError(
                f"rollout.device={device}: no engine of this run takes it (rollouts: "
                f"{grpo.skipped or self.rollout.engine + kind}; validation: "
                f"{self.validation.engine}); set it to '', or one of them to vllm"
            )
        return self

    @model_validator(mode="after")
    def _head_is_torchs(self) -> Self:
        if self.grpo.cast_lm_head_to_fp32 and self.model.backend == "unsloth":
            raise ValueError(
                "grpo.cast_lm_head_to_fp32: backend unsloth computes logits with kernels of its "
                "own; set it to false, or model.backend to transformers"
            )
        if self.grpo.cast_lm_head_to_fp32 and "lm_head" in self.model.lora.target_modules:
            raise ValueError(
                "grpo.cast_lm_head_to_fp32: an output layer with an adapter keeps its type; take "
                "lm_head out of model.lora.target_modules, or set it to false"
            )
        return self

    @model_validator(mode="after")
    def _trl_generates_by_itself(self) -> Self:
        if self.grpo.trainer != "trl" or self.grpo.skipped:
            return self
        name = self.prompt.format
        known = is_plugin(name) or name in PROMPT_FORMATS  # another one is `unknown_names`' to say
        lacking = {
            "rollout.engine: vllm-server": self.rollout.engine == "vllm-server",
            "model.backend: unsloth": self.model.backend == "unsloth",
            f"prompt.format: {self.prompt.format}, whose stop strings end a completion": (
                # TRL would take all of them for truncated ones, where it stops there at all.
                known and bool(prompt_format(name).stop_strings)
            ),
            "grpo.beta above 0 on full weights": self.grpo.beta > 0 and not self.model.lora.rank,
        }
        if any(lacking.values()):
            names = "; ".join(name for name, lacks in lacking.items() if lacks)
            raise ValueError(f"grpo.trainer=trl cannot do: {names}. Use grpo.trainer: reckon")
        return self

    def flat(self) -> dict[str, Any]:
        """Values by dotted key, as params.yaml has them; a list is one value."""
        return dict(_leaves(self.model_dump(mode="json"), ""))

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
        return starts | dict(zip(["dpo"], self.dpo.init, strict=False))

    @model_validator(mode="after")
    def _dpo_is_measured(self) -> Self:
        measured = self.evaluate.checkpoints
        if not self.dpo.init and "dpo" in measured:
            raise ValueError(
                "evaluate.checkpoints: `dpo` is there, but dpo.init is [], so that nothing makes "
                "it; set dpo.init to [sft] or [grpo]"
            )
        for init in self.dpo.init:
            for needed, why in (
                ("dpo", "so that nobody would know what it did"),
                (init, "which what it changed is measured against"),
            ):
                if needed not in measured:
                    raise ValueError(
                        f"evaluate.checkpoints: dpo.init is [{init}] and `{needed}` is not "
                        f"there, {why}; add it"
                    )
        return self

    def warnings(self) -> list[str]:
        """What is allowed, and probably not meant."""
        if self.model.dtype != "bfloat16" or self.model.lora.rank:
            return []
        phases = {name: getattr(self, name) for name in self.starts}
        return [
            f"{name}.learning_rate: {phase.learning_rate:g} on bfloat16 weights leaves "
            f"{lost_updates(phase.learning_rate):.0%} of them as they were, however many steps "
            "agree; set model.dtype: float32 with model.mixed_precision: bf16"
            for name, phase in phases.items()
            if not phase.skipped and lost_updates(phase.learning_rate) > ACCEPTABLE_LOSS
        ]

    @model_validator(mode="after")
    def _exported_is_measured(self) -> Self:
        if self.export.checkpoint not in self.evaluate.checkpoints:
            raise ValueError(
                f"export.checkpoint: `{self.export.checkpoint}` is not in evaluate.checkpoints "
                f"({', '.join(self.evaluate.checkpoints)}); the model card needs its numbers"
            )
        return self


def _leaves(section: dict[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield above + name, value
