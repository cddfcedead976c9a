"""Rows of `python -m bench.gpu` by part, in the order of a user's questions.

A row is one set of params, measured in a process of its own (`bench.gpu.measure`). The models
have random weights in the real shapes, of the presets' `facts`: nothing is fetched. A random
model hardly ever ends by itself, so that every completion has about the longest length.
"""

import copy
import dataclasses
import functools
import importlib.util
import math
from collections.abc import Callable
from typing import Any, Literal

from ruamel.yaml import YAML

from lib.core.errors import UserError
from lib.models.hub import fetch, kernel_repository, look_up
from lib.params import compose_preset, model_shapes, parse_params, preset_params
from lib.params.load import PRESETS, read_yaml
from lib.params.model import FLASH_KERNEL
from lib.params.presets import BASE, preset_names

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

SHAPES: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-0.6B": {
        "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True,
    },
    **model_shapes(),
}  # fmt: skip
"""Model → its config.json as far as a size depends on it."""

SMALL = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 640,
}  # fmt: skip


STEPS = 5
"""Steps of a training phase."""

UNSAVED = {"save_steps": 0, "keep_checkpoints": 0, "eval_steps": 0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement.

    Attributes:
        kind: a training phase, a killed and resumed run, two equal runs, or an export.
        shape: config.json of the model.
        params: content of params.yaml.
        full: prompts and examples are as long as params allow, else short.
        instead: by param, the substitute used here.
        skipped: reason for no measurement, else ''.
    """

    kind: Literal["sft", "grpo", "resume", "repeat", "export"]
    shape: dict[str, Any]
    params: dict[str, Any]
    full: bool = False
    instead: dict[str, str] = dataclasses.field(default_factory=dict)
    skipped: str = ""

    def described(self) -> dict[str, Any]:
        """Describe the row: its fields, with only the params that differ from the default."""
        own, base = parse_params(self.params, origin="bench.gpu"), preset_params(BASE).flat()
        changed = {key: value for key, value in own.flat().items() if value != base[key]}
        return {**dataclasses.asdict(self), "params": changed}


@functools.cache
def _quick(preset: str) -> dict[str, Any]:
    return dict(YAML(typ="safe").load(compose_preset(preset, quick=True)))


NEEDS = {
    "model.backend": ("transformers", "unsloth"),
    "model.attention": ("sdpa", "flash_attn", "kernels"),
    "rollout.engine": ("transformers", "vllm"),
    "validation.engine": ("transformers", "vllm"),
}
"""By param, its value that needs no other package, then the packages of all others."""


def missing(content: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return, by param, the package that is not installed, and the value in its place."""
    lacks = {}
    for key, (substitute, *packages) in NEEDS.items():
        section, _, name = key.partition(".")
        is_here = any(map(importlib.util.find_spec, packages))
        if content[section][name] != substitute and not is_here:
            lacks[key] = packages[0], substitute
    return lacks


@functools.cache
def flash_attention() -> str:
    """Return the `flash_attention_2` available here: compiled, or the Hub's kernel at its commit.

    Raises:
        UserError: the Hub cannot be reached, or has no build for this torch.
    """
    if importlib.util.find_spec("flash_attn"):
        return "flash_attention_2"
    commit, _ = look_up(kernel_repository())
    fetch(kernel_repository(commit))
    return f"{FLASH_KERNEL}@{commit}"


def row(name: str, *, kind: Any = "grpo", **changes: Any) -> Row:
    """Make a row of GRPO on short problems; without its packages it is skipped.

    Args:
        name: a model in `SHAPES`.
        changes: by section of the tiny preset, over the changes common to these rows.
    """
    content = copy.deepcopy(_quick(BASE))
    common: dict[str, Any] = {
        "model": {"dtype": "bfloat16", "mixed_precision": "bf16", "max_seq_length": 320},
        "rollout": {"max_new_tokens": 256, "gpu_memory_utilization": 0.5},
        "grpo": {"prompts_per_step": 4, "group_size": 8, "micro_batch_size": 8, **UNSAVED},
    }
    lora = {"rank": 32, "target_modules": list(TARGETS)} | changes.pop("lora", {})
    content["model"]["lora"] |= lora
    for section in common.keys() | changes.keys():
        content[section] |= common.get(section, {}) | changes.get(section, {})
    lacks = ", ".join(package for package, _ in missing(content).values())
    return Row(
        kind=kind, shape=SHAPES[name], params=content,
        skipped=f"not installed: {lacks}" if lacks else "",
    )  # fmt: skip


WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "reckon": {},
    "trl": {"grpo": {"trainer": "trl"}},
    "reckon-vllm": {"rollout": {"engine": "vllm"}},
    "trl-vllm": {"grpo": {"trainer": "trl"}, "rollout": {"engine": "vllm"}},
    "unsloth": {"model": {"backend": "unsloth"}},
    "unsloth-vllm": {"model": {"backend": "unsloth"}, "rollout": {"engine": "vllm"}},
}
"""Our trainer and TRL's, each with either engine; the last shares vLLM's weights."""


def own_presets() -> list[str]:
    """List the presets with a model of the Hub that are no variant of another preset."""
    overlays = {name: read_yaml(PRESETS / f"{name}.yaml") for name in preset_names()}
    return [
        name
        for name, content in overlays.items()
        if "preset" not in content and "/" in content.get("model", {}).get("name", "")
    ]


def steps(model: str) -> dict[str, Row]:
    """Make rows of a GRPO step in every way: same model, LoRA, types, batches and lengths."""
    return {way: row(model, **changes) for way, changes in WAYS.items()}


def presets() -> dict[str, Row]:
    """Make rows of the first steps of each phase of the presets, at the longest lengths.

    With their own attention and engines, validation's too, before the first step and after the
    last. A step is cut to two micro-batches, which changes no peak.
    """
    rows: dict[str, Row] = {}
    for preset in own_presets():
        content = copy.deepcopy(_quick(preset))
        grpo, sft = content["grpo"], content["sft"]
        grpo["prompts_per_step"] = math.ceil(2 * grpo["micro_batch_size"] / grpo["group_size"])
        sft["batch_size"] = min(sft["batch_size"], 2 * sft["micro_batch_size"])
        for section in (grpo, sft):
            section |= UNSAVED | {"eval_steps": STEPS}
        content["validation"]["num_problems"] = 4
        phases = [name for name, count in (("grpo", "max_steps"), ("sft", "num_epochs"))
                  if content[name][count]]  # fmt: skip
        shape, instead = SHAPES[content["model"]["name"]], {}
        for key, (_, substitute) in missing(content).items():
            section, _, name = key.partition(".")
            content[section][name] = instead[key] = substitute
        if content["model"]["attention"] != "sdpa":
            try:
                content["model"]["attention"] = flash_attention()
            except UserError as error:
                content["model"]["attention"], instead["model.attention"] = "sdpa", error.message
        for phase in phases:
            rows[f"{preset} {phase}"] = Row(
                kind=phase, shape=shape, params=content, full=True, instead=instead
            )
    return rows


def precisions() -> dict[str, Row]:
    """Make rows of the gap between sampler and trainer, by type of weights and products."""
    types = {
        "float32": {"dtype": "float32", "mixed_precision": "fp32"},
        "bfloat16": {"dtype": "bfloat16", "mixed_precision": "bf16"},
        "bfloat16 products": {"dtype": "float32", "mixed_precision": "bf16"},
    }
    return {
        f"{name}, {engine}": row(
            SMALLEST, model=model, rollout={"engine": engine}, lora={"rank": 0}
        )
        for engine in ("transformers", "vllm")
        for name, model in types.items()
    }


SMALLEST, LARGEST = "Qwen/Qwen3-0.6B", "unsloth/Qwen3-4B-Base"


def export() -> dict[str, Row]:
    """Make the row of S0, the largest: an adapter is folded, written, and loaded again."""
    content = copy.deepcopy(_quick("s0-qwen3-4b"))
    content["model"]["backend"] = "transformers"
    return {"s0-qwen3-4b": Row(kind="export", shape=SHAPES[LARGEST], params=content)}


PARTS: dict[str, Callable[[], dict[str, Row]]] = {
    "presets": presets,
    "resume": lambda: {"grpo": row(SMALLEST, kind="resume", grpo={"save_steps": 2})},
    "repeat": lambda: {
        "grpo": row(SMALLEST, kind="repeat", model={"deterministic": True}, grpo={"max_steps": 10})
    },
    "sampler-gap": precisions,
    "export": export,
    "steps-0.6b": lambda: steps(SMALLEST),
    "steps-4b": lambda: steps(LARGEST),
}
"""Every row of training has planned and measured memory."""


def small(large: Row) -> Row:
    """Shrink a row's model and lengths to seconds on a CPU."""
    shape = large.shape | SMALL
    short = {section: large.params[section] | {"max_new_tokens": 16}
             for section in ("rollout", "validation", "evaluate")}  # fmt: skip
    content = large.params | {"model": large.params["model"] | {"max_seq_length": 416}} | short
    if large.kind != "resume":  # its kill comes at a later step
        content["grpo"] = content["grpo"] | {"max_steps": min(2, content["grpo"]["max_steps"])}
    return dataclasses.replace(large, shape=shape, params=content)
