"""What a run would do, from params alone: steps, batches, schedule, memory, disk. No torch needed.

Estimates, in bytes; N weights, M of them trained, L layers, T tokens of a micro-batch:

    weights      N · bytes(dtype)
    gradients    M · bytes(dtype)
    AdamW        2 · M · bytes(dtype), in CPU memory with an optimiser that keeps its state there
    activations  T · (8 · hidden + 4 · intermediate) · bytes(compute) for each layer, or with
                 gradient checkpointing T · hidden for each layer and the rest for one
    logits       2 · T · vocab · 4: float32, and their gradient
    cache        sequences · length · L · 2 · kv_heads · head_dim · bytes(dtype), of transformers
    reference    N · bytes(dtype): the policy that the KL penalty ties to, where all is trained

A table of attention scores is left out (sdpa and flash attention hold none), and so is what CUDA,
the allocator and vLLM take for themselves; `make memory-probe` measures.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from lib.engines.sizes import BYTES, Shape, shape_of
from lib.engines.unsloth import shares_weights
from lib.params import Params
from lib.params.data import GeneratorSource, HubSource, PathSource
from lib.params.schema import Grpo, Model, Optimisation, Sft
from lib.trainers.batches import micro_batches

ROWS = {
    ("openai/gsm8k", "train"): 7_473,
    ("open-r1/DAPO-Math-17k-Processed", "train"): 14_116,
}
"""Rows of sets on the Hub, as their pages state them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """One training phase.

    Attributes:
        skipped: why it is, '' where it runs.
        steps: optimiser steps, None where the number of examples is not known before `prepare`.
        warmup_steps: of those, with a rising learning rate.
        completions: sequences per optimiser step.
        tokens: at most, per optimiser step.
        memory: estimate by part, in bytes.
        trainer: what TRL is given for the batch.
    """

    name: str
    skipped: str
    examples: int | None
    steps: int | None
    warmup_steps: int | None
    completions: int
    tokens: int
    memory: dict[str, int]
    trainer: dict[str, int]


def plan_sft(params: Params, shape: Shape | None) -> Phase:
    """Supervised fine-tuning; one epoch's last step may be smaller than the others."""
    sft, model = params.sft, params.model
    examples = sft_examples(params)
    steps = None
    if examples is not None:
        steps = math.ceil(examples / sft.batch_size) * sft.num_epochs
    return Phase(
        name="sft",
        skipped="" if sft.num_epochs else "sft.num_epochs is 0",
        examples=examples,
        steps=steps,
        warmup_steps=_warmup(sft, steps),
        completions=sft.batch_size,
        tokens=sft.batch_size * model.max_seq_length,
        memory=_training_memory(sft, sft.micro_batch_size, model=model, shape=shape),
        trainer=micro_batches(sft.batch_size, micro_batch=sft.micro_batch_size, world_size=1),
    )


def plan_grpo(params: Params, shape: Shape | None) -> Phase:
    """Reinforcement; completions of a micro-batch may be as long as the whole sequence."""
    grpo, model = params.grpo, params.model
    completions = grpo.prompts_per_step * grpo.group_size
    memory = _training_memory(grpo, grpo.micro_batch_size, model=model, shape=shape)
    if shape is not None:
        if params.rollout.engine == "transformers":
            memory["cache"] = cache_bytes(shape, model, sequences=completions)
        if grpo.beta and not model.lora.rank:
            memory["reference"] = memory["weights"]
    return Phase(
        name="grpo",
        skipped="" if grpo.max_steps else "grpo.max_steps is 0",
        examples=rows_of([entry.source for entry in params.prepare.grpo.sources], params),
        steps=grpo.max_steps,
        warmup_steps=_warmup(grpo, grpo.max_steps),
        completions=completions,
        tokens=completions * params.rollout.max_new_tokens,
        memory=memory,
        trainer={
            **micro_batches(completions, micro_batch=grpo.micro_batch_size, world_size=1),
            "num_generations": grpo.group_size,
        },
    )


def sft_examples(params: Params) -> int | None:
    """Examples that SFT sees before filters; None where only `prepare` can count them."""
    data = params.prepare.sft
    rows = rows_of([entry.source for entry in data.sources], params)
    if isinstance(data.num_train_examples, int):
        return data.num_train_examples if rows is None else min(rows, data.num_train_examples)
    return rows


def rows_of(sources: list[GeneratorSource | PathSource | HubSource], params: Params) -> int | None:
    """Rows of all sources together; None where one of them is not known."""
    counts = [_rows(source, params) for source in sources]
    return None if None in counts else sum(count for count in counts if count is not None)


def _rows(source: GeneratorSource | PathSource | HubSource, params: Params) -> int | None:
    if isinstance(source, GeneratorSource):
        return int(getattr(params.prepare.synthetic, f"num_{source.generator}"))
    return ROWS.get((source.hub, source.split)) if isinstance(source, HubSource) else None


def _warmup(section: Optimisation, steps: int | None) -> int | None:
    """As transformers counts: a share below 1 is rounded up to whole steps."""
    return None if steps is None else math.ceil(steps * min(section.warmup_ratio, 1 - 1e-9))


def trained_parameters(model: Model, shape: Shape) -> int:
    """Weights that training moves."""
    lora = model.lora
    if not lora.rank:
        return shape.parameters
    return shape.adapter_parameters(rank=lora.rank, targets=lora.target_modules)


def _training_memory(
    section: Sft | Grpo, micro_batch: int, *, model: Model, shape: Shape | None
) -> dict[str, int]:
    if shape is None:
        return {}
    size, trained = BYTES[model.dtype], trained_parameters(model, shape)
    compute = 2 if model.mixed_precision == "bf16" else size
    tokens = micro_batch * model.max_seq_length
    block = tokens * (8 * shape.hidden + 4 * shape.intermediate) * compute
    kept = tokens * shape.hidden * compute
    layers = kept * shape.layers + block if model.gradient_checkpointing else block * shape.layers
    state = 2 * trained * size
    return {
        "weights": shape.parameters * size,
        "gradients": trained * size,
        "optimizer": 0 if section.optimizer == "memory_efficient_adamw" else state,
        "activations": layers,
        "logits": 2 * tokens * shape.vocab * 4,
    }


def cache_bytes(shape: Shape, model: Model, *, sequences: int) -> int:
    """Keys and values of `sequences` at their longest."""
    per_token = shape.layers * 2 * shape.kv_heads * shape.head_dim * BYTES[model.dtype]
    return sequences * model.max_seq_length * per_token


def disk_bytes(params: Params, shape: Shape) -> dict[str, int]:
    """Files that the stages leave, by name; a skipped phase passes a copy on."""
    model = params.model
    weights = shape.parameters * BYTES[model.dtype]
    pointer = 0 if model.name else shape.parameters * BYTES["float32"]
    saved = trained_parameters(model, shape) * BYTES[model.dtype] if model.lora.rank else weights
    sft = saved if params.sft.num_epochs else pointer
    return {
        "base": pointer,
        "sft": sft,
        "grpo": saved if params.grpo.max_steps else sft,
        "export": shape.parameters * BYTES[params.export.dtype],
    }


def plan_lines(params: Params) -> Iterator[str]:
    """The plan as text, a line each."""
    model, shape = params.model, shape_of(params.model)
    yield f"plan: base model {_model_words(model, shape)}"
    yield f"  {_lora_words(params, shape)}"
    yield f"  prompt {params.prompt.format}, layout {params.prompt.layout}"
    yield "  stages: " + " → ".join(_stages(params))
    for phase, section in (
        (plan_sft(params, shape), params.sft),
        (plan_grpo(params, shape), params.grpo),
    ):
        yield from _phase_lines(phase, section)
    yield from _grpo_words(params)
    yield _evaluation_words(params)
    if shape is None:
        yield "memory and disk: unknown without the model's config.json"
    else:
        sizes = disk_bytes(params, shape)
        yield (
            f"disk ≈ {in_bytes(sum(sizes.values()))} in data/models: {_parts(sizes)}; again in "
            "DVC's cache; beside it the Hub's files of the model, and checkpoints to resume from"
        )
    yield "estimates; the formulae stand in lib/trainers/plan.py, `make memory-probe` measures"


def _phase_lines(phase: Phase, section: Sft | Grpo) -> Iterator[str]:
    if phase.skipped:
        yield f"{phase.name}: skipped, {phase.skipped}"
        return
    steps = phase.steps if phase.steps is not None else "unknown until prepare has run"
    yield (
        f"{phase.name}: steps {steps}, warm-up {_or_unknown(phase.warmup_steps)}; "
        f"learning rate {section.learning_rate:g}, {section.lr_schedule}; "
        f"{section.optimizer} β ({section.adam_beta1:g}, {section.adam_beta2:g}), "
        f"weight decay {section.weight_decay:g}, clip {section.max_grad_norm:g}"
    )
    yield f"  data: {_or_unknown(phase.examples)} rows before filters"
    yield "  trainer: " + ", ".join(f"{name}={value}" for name, value in phase.trainer.items())
    yield (
        f"  per step: {phase.completions} sequences, at most {phase.tokens:,} "
        f"{'completion ' if phase.name == 'grpo' else ''}tokens"
    )
    if phase.memory:
        total = sum(phase.memory.values())
        yield f"  memory ≈ {in_bytes(total)}: {_parts(phase.memory)}"


def _grpo_words(params: Params) -> Iterator[str]:
    grpo, rollout = params.grpo, params.rollout
    if not grpo.max_steps:
        return
    sampling = {"T": rollout.temperature, "top_p": rollout.top_p}
    sampling |= {"top_k": rollout.top_k, "min_p": rollout.min_p}
    drawn = ", ".join(f"{name} {value:g}" for name, value in sampling.items())
    rewards = " ".join(f"{weight:g}" for weight in params.reward.weights)
    beside = "beside the policy"
    if shares_weights(params.model, engine=rollout.engine):
        beside = "with the weights, which are the policy's own: Unsloth's fast_inference"
    share = f" (vLLM takes {rollout.gpu_memory_utilization:.0%} of the GPU {beside})"
    yield (
        f"  engine {rollout.engine}{share if rollout.engine == 'vllm' else ''}; "
        f"rollouts: {grpo.prompts_per_step} problems × {grpo.group_size} completions a step, "
        f"{grpo.max_steps * grpo.prompts_per_step * grpo.group_size:,} in all; {drawn}, "
        f"at most {rollout.max_new_tokens} tokens"
    )
    yield (
        f"  objective: loss {grpo.loss}, advantage {grpo.advantage}, β {grpo.beta:g}; "
        f"reward stack {params.reward.stack} × {rewards}"
    )


def _evaluation_words(params: Params) -> str:
    evaluate = params.evaluate
    return (
        f"evaluate with {evaluate.engine}: {', '.join(evaluate.checkpoints)} on "
        f"{', '.join(evaluate.benchmarks)}; "
        f"{evaluate.num_samples} samples at T {evaluate.temperature:g}, "
        f"top_p {evaluate.top_p:g}, at most {evaluate.max_new_tokens} tokens"
    )


def _stages(params: Params) -> list[str]:
    skipped = {"sft": not params.sft.num_epochs, "grpo": not params.grpo.max_steps}
    phases = [f"({name} passed on)" if skipped[name] else name for name in ("sft", "grpo")]
    evaluated = ",".join(params.evaluate.checkpoints)
    return ["prepare", *phases, f"evaluate@{{{evaluated}}}", f"export {params.export.checkpoint}"]


def _model_words(model: Model, shape: Shape | None) -> str:
    count = f"{shape.parameters / 1e6:,.1f} M parameters" if shape else "size unknown"
    name = f"{model.name}@{model.revision[:12]}" if model.revision else model.name
    return (
        f"{name or 'tiny Qwen3 from random weights'}: {count}, {model.dtype}, "
        f"computes in {model.mixed_precision}, attention {model.attention}, "
        f"backend {model.backend}, max_seq_length {model.max_seq_length}"
    )


def _lora_words(params: Params, shape: Shape | None) -> str:
    lora = params.model.lora
    if not lora.rank:
        return "all weights are trained"
    count = f" ({trained_parameters(params.model, shape) / 1e6:,.1f} M trained)" if shape else ""
    return f"LoRA r {lora.rank} α {lora.alpha} on {', '.join(lora.target_modules)}{count}"


def _or_unknown(value: Any) -> str:
    return "unknown" if value is None else f"{value:,}"


def _parts(parts: dict[str, int]) -> str:
    return ", ".join(f"{name} {in_bytes(size)}" for name, size in parts.items())


def in_bytes(size: int) -> str:
    """Size in the unit that leaves at most three digits before the point."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1024
    return f"{amount:.3g} TiB"
