"""What params.yaml may say: one frozen, strict model per section, no default anywhere.

A key is here if changing it should re-run a stage. Devices, tracking and launchers are environment.
The sections are in `model`, `data`, `training` and `measuring`; here they become the whole, with
what they owe each other (`Params.conflicts`, which `parse_params` asks for).
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from lib.core.errors import UserError
from lib.core.plugins import is_plugin, label
from lib.engines.registry import ENGINES
from lib.params.data import Prepare
from lib.params.model import Decoding, Evaluate, Export, Model, Prompt, lost_updates
from lib.params.section import HELD_BACK, Positive, Section, suggest
from lib.params.training import (
    Dpo,
    Grpo,
    Reward,
    RolloutSampling,
    Sft,
    Validation,
)
from lib.prompts import prompt_format
from lib.rewards.functions import Grading, rewards_of

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

    def flat(self) -> dict[str, Any]:
        """Values by dotted key, as params.yaml has them; a list is one value."""
        return dict(leaves(self.model_dump(mode="json")))

    @property
    def starts(self) -> dict[str, str]:
        """The checkpoint that each phase of this run started from, by the phase's own."""
        starts = {"sft": "base", "grpo": "sft"}
        return starts | dict(zip(["dpo"], self.dpo.init, strict=False))

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

    def conflicts(self) -> Iterator[str]:
        """What the sections owe each other and do not keep, one line each."""
        yield from self._unknown_sets()
        yield from self._lengths()
        yield from self._rewards()
        yield from self._engines()
        yield from self._checkpoints()
        if self.prepare.grpo.difficulty.easy_first and self.grpo.shuffle:
            yield (
                "prepare.grpo.difficulty.easy_first: has no effect while grpo.shuffle is true; "
                "set that to false"
            )

    def _unknown_sets(self) -> Iterator[str]:
        made = [benchmark.name for benchmark in self.prepare.benchmarks]
        for key, names, known in (
            ("evaluate.benchmarks", self.evaluate.benchmarks, made),
            ("validation.sets", self.validation.sets, [*made, HELD_BACK]),
        ):
            for name in names:
                if name not in known:
                    yield f"{key}: no `{name}`; {suggest(name, known)}"
        if HELD_BACK in self.validation.sets and not self.prepare.validation_share:
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
            if section.max_new_tokens >= longest:
                yield (
                    f"{key}.max_new_tokens: {section.max_new_tokens} is not below "
                    f"model.max_seq_length={longest}, which holds prompt and completion together"
                )

    def _rewards(self) -> Iterator[str]:
        """Rewards without a weight or tags to count, and a format that TRL would not stop at."""
        reward, validation = self.reward, self.validation
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
        settings = reward.settings(max_completion_tokens=self.rollout.max_new_tokens)
        try:
            own_format = prompt_format(**self.prompt.rendering)
            # One's own are tried by `check`: a stage before GRPO need not have them.
            registered = [name for name in (*functions, *checked) if not is_plugin(name)]
            Grading(registered, prompt_format=own_format, **settings)
        except UserError as error:
            yield error.message
            return
        if self.grpo.trainer != "trl" or self.grpo.skipped:
            return
        engines = {self.rollout.engine, self.validation.engine}
        lacking = {
            "rollout.engine: vllm-server": self.rollout.engine == "vllm-server",
            "validation.engine: vllm beside its own": (
                # A process has room for one, and TRL's is not ours to ask.
                engines == {"vllm"} and self.grpo.eval_steps > 0
            ),
            f"prompt.format: {self.prompt.format}, whose stop strings end a completion": (
                # TRL would take all of them for truncated ones, where it stops there at all.
                own_format.stop_strings
            ),
            "grpo.beta above 0 on full weights with model.tag_tokens": (
                # It loads the reference policy from files, which lack the tokens' rows.
                self.grpo.beta > 0 and not self.model.lora.rank and self.model.tag_tokens
            ),
        }
        if any(lacking.values()):
            what = "; ".join(name for name, lacks in lacking.items() if lacks)
            yield f"grpo.trainer=trl cannot do: {what}. Use grpo.trainer: reckon"

    def _engines(self) -> Iterator[str]:
        """What Unsloth refuses (unsloth 2026.10.7), and a device that no engine takes."""
        model, grpo, engine = self.model, self.grpo, self.rollout.engine
        # `fast_inference`: one copy of the weights for training and vLLM.
        sections = {"rollout.engine": engine, "validation.engine": self.validation.engine}
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
        rolls_out = not (grpo.skipped or shared or grpo.trainer == "trl")
        # Where weights are shared, validation is on the engine below the policy, too.
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
        # On the policy's GPU, or in a server, an engine would ignore it silently.
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
                "evaluate.checkpoints: `dpo` is there, but dpo.init is [], so that nothing makes "
                "it; set dpo.init to [sft] or [grpo]"
            )
        for init in self.dpo.init:
            if missing := [name for name in ("dpo", init) if name not in measured]:
                yield (
                    f"evaluate.checkpoints: dpo.init is [{init}], and without `{missing[0]}` in "
                    "the list nobody would know what it changed; add it"
                )
        if self.export.checkpoint not in measured:
            yield (
                f"export.checkpoint: `{self.export.checkpoint}` is not in evaluate.checkpoints "
                f"({', '.join(measured)}); the model card needs its numbers"
            )


def leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings by dotted key; a list is one leaf."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{above}{name}.")
        else:
            yield above + name, value
