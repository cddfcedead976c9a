"""The schema of params.yaml: one frozen, strict model per section, without defaults.

A key is here if changing it should re-run a stage. Devices, tracking and launchers are environment.
The sections are in `model`, `data` and `training`. This module joins them and checks them against
each other (`Params.conflicts`, called by `parse_params`).
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from lib.core.errors import UserError
from lib.core.plugins import is_plugin, label
from lib.engines.registry import ENGINES
from lib.params.data import Prepare
from lib.params.model import Decoding, Evaluate, Export, Model, Prompt, lost_updates
from lib.params.section import HELD_BACK_SET, Section, suggest
from lib.params.training import (
    Dpo,
    Grpo,
    Optimisation,
    Reward,
    RolloutSampling,
    Sft,
    Validation,
)
from lib.prompts import prompt_format
from lib.rewards.functions import Grading, rewards_of

ACCEPTABLE_LOSS = 0.05
"""Acceptable share of bfloat16 weights without an update; met from a learning rate of about 2e-4
on."""


class Params(Section):
    """The whole of params.yaml."""

    # 32 bits: the limit of NumPy's seed, which transformers sets too.
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)]
    """Seed of data, weights, order and sampling."""
    # Sums are split by threads, and float addition depends on its order.
    torch_threads: Annotated[int, Field(ge=1, le=1024)]
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

    def flat(self) -> dict[str, Any]:
        """Return the values by dotted key, as in params.yaml; a list is one value."""
        return dict(leaves(self.model_dump(mode="json")))

    @property
    def starts(self) -> dict[str, str]:
        """The starting checkpoint of each phase in this run, by phase."""
        starts = {"sft": "base", "grpo": "sft"}
        # `dpo.init` is [] or one name; without it zip gives no entry.
        return starts | dict(zip(["dpo"], self.dpo.init, strict=False))

    def warnings(self) -> list[str]:
        """List settings that are allowed and probably a mistake."""
        # PEFT keeps adapters in float32, where small updates are not lost.
        if self.model.dtype != "bfloat16" or self.model.lora.rank:
            return []
        phases = {name: getattr(self, name) for name in self.starts}
        return [
            f"{name}.learning_rate: {phase.learning_rate:g} on bfloat16 weights leaves "
            f"{lost_updates(phase.learning_rate):.0%} of them unchanged, however many steps "
            "agree; set model.dtype: float32 with model.mixed_precision: bf16"
            for name, phase in phases.items()
            if not phase.skipped and lost_updates(phase.learning_rate) > ACCEPTABLE_LOSS
        ]

    def conflicts(self) -> Iterator[str]:
        """List contradictions between sections, one line each."""
        yield from self._unknown_sets()
        yield from self._selection()
        yield from self._lengths()
        yield from self._rewards()
        yield from self._engines()
        yield from self._checkpoints()
        if self.prepare.grpo.difficulty.easy_first and self.grpo.shuffle:
            yield (
                "prepare.grpo.difficulty.easy_first: has no effect while grpo.shuffle is true; "
                "set that to false"
            )

    def _selection(self) -> Iterator[str]:
        # Never by a benchmark: the numbers reported on it would then be chosen too.
        for name in self.starts:
            phase: Optimisation = getattr(self, name)
            held_back = HELD_BACK_SET in self.validation.sets
            if phase.select == "best" and not (phase.skipped or (phase.eval_steps and held_back)):
                yield (
                    f"{name}.select: best is measured on the held-back set; add "
                    f"`{HELD_BACK_SET}` to validation.sets, and set {name}.eval_steps above 0"
                )

    def _unknown_sets(self) -> Iterator[str]:
        # Names of benchmarks are free, so that only `prepare` knows them.
        made = [benchmark.name for benchmark in self.prepare.benchmarks]
        for key, names, known in (
            ("evaluate.benchmarks", self.evaluate.benchmarks, made),
            ("validation.sets", self.validation.sets, [*made, HELD_BACK_SET]),
        ):
            for name in names:
                if name not in known:
                    yield f"{key}: no `{name}`; {suggest(name, known)}"
        if HELD_BACK_SET in self.validation.sets and not self.prepare.validation_share:
            yield (
                "validation.sets: nothing is held back while prepare.validation_share is 0; "
                "raise it, or name a benchmark"
            )

    def _lengths(self) -> Iterator[str]:
        longest = self.model.max_seq_length
        sections: dict[str, RolloutSampling | Decoding | Validation] = {
            "rollout": self.rollout,
            "evaluate": self.evaluate,
            "validation": self.validation,
            **{f"evaluate.overrides.{each.benchmark}": each for each in self.evaluate.overrides},
        }
        for key, section in sections.items():
            # Not only above: a prompt needs at least one token.
            if section.max_new_tokens >= longest:
                yield (
                    f"{key}.max_new_tokens: {section.max_new_tokens} is not below "
                    f"model.max_seq_length={longest}, which holds prompt and completion together"
                )

    def _rewards(self) -> Iterator[str]:
        """List rewards without a weight or tags to count, and formats without a stop in TRL."""
        reward, validation = self.reward, self.validation
        # Validation has its own weights: its curve stays comparable when rewards change.
        functions, checked = reward.names, rewards_of(validation.stack)
        for key, names, weights in (
            ("reward", functions, reward.weights),
            ("validation", checked, validation.weights),
        ):
            if len(names) != len(weights):
                yield (
                    f"{key}.weights: {len(weights)} weights for "
                    f"{len(names)} functions ({', '.join(map(label, names))})"
                )
        # Grading raises if a reward reads tags that the format does not write.
        settings = reward.settings(max_completion_tokens=self.rollout.max_new_tokens)
        try:
            own_format = prompt_format(**self.prompt.rendering)
            # `check` tries plugins: a stage before GRPO does not depend on their files.
            registered = [name for name in (*functions, *checked) if not is_plugin(name)]
            Grading(registered, prompt_format=own_format, **settings)
        except UserError as error:
            yield error.message
            return
        if self.grpo.trainer != "trl" or self.grpo.skipped:
            return
        engines = {self.rollout.engine, self.validation.engine}
        # As of TRL 1.14, run unchanged.
        lacking = {
            "rollout.engine: vllm-server": self.rollout.engine == "vllm-server",
            "validation.engine: vllm beside its own engine": (
                # A process has room for one vLLM, and TRL does not expose its own.
                engines == {"vllm"} and self.grpo.eval_steps > 0
            ),
            f"prompt.format: {self.prompt.format}, whose stop strings end a completion": (
                # TRL counts a completion without EOS as truncated, if it stops there at all.
                own_format.stop_strings
            ),
            "grpo.beta above 0 on full weights with model.tag_tokens": (
                # TRL loads the reference policy from files, which lack the new tokens' rows.
                self.grpo.beta > 0 and not self.model.lora.rank and self.model.tag_tokens
            ),
        }
        if any(lacking.values()):
            what = "; ".join(name for name, lacks in lacking.items() if lacks)
            yield f"grpo.trainer=trl cannot do: {what}. Use grpo.trainer: reckon"

    def _engines(self) -> Iterator[str]:
        """List settings that Unsloth 2026.10.7 refuses, and devices that no engine uses."""
        model, grpo, engine = self.model, self.grpo, self.rollout.engine
        # `fast_inference`: one copy of the weights for training and vLLM.
        sections = {"rollout.engine": engine, "validation.engine": self.validation.engine}
        # Engines that Unsloth loads on the weights of the policy.
        below = [key for key, name in sections.items() if ENGINES[name].below_unsloth]
        shared = model.backend == "unsloth" and "rollout.engine" in below
        if model.backend == "unsloth" and below and not model.lora.rank:
            yield (
                f"{below[0]}=vllm: backend unsloth shares its weights with vLLM only under "
                f"LoRA; set model.lora.rank, or {' and '.join(below)} to transformers"
            )
        if model.backend == "unsloth" and below and model.dtype != "bfloat16":
            yield (
                f"model.dtype={model.dtype}: backend unsloth shares only weights of 16 bits with "
                f"vLLM; set it to bfloat16, or {' and '.join(below)} to transformers"
            )
        if grpo.cast_lm_head_to_fp32 and model.backend == "unsloth":
            yield (
                "grpo.cast_lm_head_to_fp32: backend unsloth computes logits with kernels of its "
                "own; set it to false, or model.backend to transformers"
            )
        if grpo.cast_lm_head_to_fp32 and "lm_head" in model.lora.target_modules:
            yield (
                "grpo.cast_lm_head_to_fp32: an output layer with an adapter keeps its type; take "
                "lm_head out of model.lora.target_modules, or set it to false"
            )
        # TRL opens its own engine, and a shared one is on the policy's GPU: neither takes a device.
        rolls_out = not (grpo.skipped or shared or grpo.trainer == "trl")
        # With shared weights, validation uses the engine below the policy too.
        shares = model.backend == "unsloth" and "validation.engine" in below
        phases = {
            "sft": None if shares else self.sft,
            "grpo": None if shared else grpo,
            "dpo": self.dpo,
        }
        validates = any(
            phase and not phase.skipped and phase.eval_steps
            for name, phase in phases.items()
            if name in self.starts
        )
        # An engine on the policy's GPU, or in a server, would ignore the device silently.
        if self.rollout.device and not (
            (rolls_out and ENGINES[engine].takes_device)
            or (validates and ENGINES[self.validation.engine].takes_device)
        ):
            kind = " on the policy's own weights (backend unsloth)" if shared else ""
            yield (
                f"rollout.device={self.rollout.device}: no engine of this run takes it (rollouts: "
                f"{grpo.skipped or engine + kind}; validation: {self.validation.engine}); "
                "set it to '', or one of them to vllm"
            )

    def _checkpoints(self) -> Iterator[str]:
        measured = self.evaluate.checkpoints
        if not self.dpo.init and "dpo" in measured:
            yield (
                "evaluate.checkpoints: `dpo` is listed, but dpo.init is [], so that no stage makes "
                "it; set dpo.init to [sft] or [grpo]"
            )
        for init in self.dpo.init:
            # The effect of DPO is the difference of the two.
            if missing := [name for name in ("dpo", init) if name not in measured]:
                yield (
                    f"evaluate.checkpoints: dpo.init is [{init}], and without `{missing[0]}` in "
                    "the list its effect cannot be measured; add it"
                )
        if self.export.gguf != "none" and not self.model.name:
            yield (
                f"export.gguf={self.export.gguf}: llama.cpp cannot split texts as the tokenizer "
                "made for model.tiny does; name a model in model.name, or set none"
            )
        # The card quotes reports/metrics, which has only evaluated checkpoints.
        if self.export.checkpoint not in measured:
            yield (
                f"export.checkpoint: `{self.export.checkpoint}` is not in evaluate.checkpoints "
                f"({', '.join(measured)}); the model card needs its numbers"
            )


def leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested mappings by dotted key; a list is one leaf."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{above}{name}.")
        else:
            yield above + name, value
