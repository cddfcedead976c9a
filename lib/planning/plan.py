"""What a run would do, from params alone: steps, batches, schedule, memory, disk. No torch needed.

Estimates, in bytes; N weights, M of them trained, L layers, T tokens of a micro-batch:

    weights      N · bytes(dtype)
    gradients    M · bytes(dtype)
    AdamW        2 · M · bytes(dtype), in CPU memory with an optimiser that keeps its state there
    activations  T · (8 · hidden + 4 · intermediate) · bytes(compute) for each layer, or with
                 gradient checkpointing T · hidden for each layer and the rest for one
    logits       2 · T · vocab · 4: float32, and their gradient
    cache        sequences · length · L · 2 · kv_heads · head_dim · bytes(dtype), of transformers
    reference    N · bytes(dtype): the policy that training is tied to, where all is trained

A table of attention scores is left out (sdpa and flash attention hold none), and so is what CUDA,
the allocator and vLLM take for themselves; `make memory-probe` measures.
"""

import dataclasses
import math

from lib.params import Params
from lib.params.data import GeneratorSource
from lib.params.model import Model
from lib.params.training import Optimisation
from lib.planning.sizes import BYTES, Shape
from lib.problems.known import AnySource, hub_splits
from lib.training.batches import micro_batches

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
        trainer=micro_batches(completions, micro_batch=grpo.micro_batch_size, world_size=1),
    )


def plan_dpo(params: Params, shape: Shape | None) -> Phase:
    """Preferences; how many pairs there are is known once they are mined."""
    dpo, model = params.dpo, params.model
    # A forward pass reads both completions of each pair, after its prompt.
    memory = _training_memory(dpo, 2 * dpo.micro_batch_size, model=model, shape=shape)
    if shape is not None and not model.lora.rank:
        memory["reference"] = memory["weights"]
    return Phase(
        name="dpo",
        skipped=dpo.skipped,
        examples=None,
        steps=None,
        warmup_steps=None,
        completions=2 * dpo.batch_size,
        tokens=2 * dpo.batch_size * model.max_seq_length,
        memory=memory,
        trainer=micro_batches(dpo.batch_size, micro_batch=dpo.micro_batch_size, world_size=1),
    )


def sft_examples(params: Params) -> int | None:
    """Examples that SFT sees before filters; None where only `prepare` can count them."""
    data = params.prepare.sft
    rows = rows_of([entry.source for entry in data.sources], params)
    if isinstance(data.num_train_examples, int):
        return data.num_train_examples if rows is None else min(rows, data.num_train_examples)
    return rows


def rows_of(sources: list[AnySource], params: Params) -> int | None:
    """Rows of all sources together; None where one of them is not known."""
    counts = [_rows(source, params) for source in sources]
    return None if None in counts else sum(count for count in counts if count is not None)


def _rows(source: AnySource, params: Params) -> int | None:
    if isinstance(source, GeneratorSource):
        return int(getattr(params.prepare.synthetic, f"num_{source.generator}"))
    counts = [ROWS.get((split.hub, split.split)) for split in hub_splits(source)]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


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
    section: Optimisation, micro_batch: int, *, model: Model, shape: Shape | None
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
    sizes = {"base": pointer, "sft": sft, "grpo": saved if params.grpo.max_steps else sft}
    for init in params.dpo.init:
        sizes["dpo"] = saved if params.dpo.num_epochs else sizes[init]
    return {
        **sizes,
        "export": shape.parameters * BYTES[params.export.dtype],
    }
