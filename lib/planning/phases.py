"""The phases of a run, from params alone: steps, tokens, memory, disk, time. No torch is needed.

Time is floating-point operations at UTILISATION of an A100's peak, and for decoding, where every
token reads all weights once, the A100's bandwidth at the same share: a training step takes 6 per
weight and token (4 where the weights are frozen), 2 more with gradient checkpointing; generation 2.
Attention, validation, loading and waiting are left out, and rows count as full.
"""

import dataclasses
import math

from lib.engines.unsloth import shares_weights
from lib.params import Params
from lib.params.data import GeneratorSource
from lib.planning.memory import longest_row, memory_at_peak, sampling_memory, workload
from lib.planning.sizes import BYTES, FACTS, Shape
from lib.problems.known import hub_splits
from lib.training.batches import micro_batches

A100_FLOPS, A100_BANDWIDTH, UTILISATION = 312e12, 2.0e12, 0.4
"""In bfloat16, per second; bytes per second (the 80 GB card's data sheet)."""

CARDS_GB = (24, 40, 80, 141)

CUDA_BYTES = 2**29
"""What a process takes of a GPU before it holds a tensor; assumed, not measured here."""


VLLM_ALONE = 0.9
"""Share of a GPU for a vLLM that no policy is beside (`lib.engines.open.open_engine`)."""

MINED = {"dpo": "pairs", "raft": "best_of_n"}
"""The stage that samples what an optional phase learns from."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """One training phase, or the sampling before one.

    Attributes:
        skipped: why it is, '' where it runs.
        rows: that it learns from; None where only an earlier stage can count them.
        rows_from: where that number comes from.
        steps: optimiser steps, or batches that are sampled; None where rows are not known.
        warmup_steps: of those, with a rising learning rate.
        completions: sequences per optimiser step.
        tokens: at most, per optimiser step.
        memory: bytes at the peak, by what they hold; {} for a model of unknown shape.
        vllm_share: of the policy's GPU, for a vLLM beside it.
        weights_in_share: vLLM's share holds the policy's own weights.
        seconds: of one step on an A100.
        trainer: what the trainer is given for the batch.
    """

    name: str
    skipped: str
    rows: int | None
    rows_from: str
    steps: int | None
    warmup_steps: int | None
    completions: int
    tokens: int
    memory: dict[str, int]
    vllm_share: float
    weights_in_share: bool
    seconds: float
    trainer: dict[str, int]

    def bytes_on(self, card: int) -> int:
        """What the phase takes of a GPU with `card` bytes."""
        shared = self.memory.get("weights", 0) if self.weights_in_share else 0
        return sum(self.memory.values()) - shared + int(self.vllm_share * card) + CUDA_BYTES


def phases_of(params: Params, shape: Shape | None) -> list[Phase]:
    """The phases in their order; DPO and RAFT, with the sampling before each, where params have
    them."""
    sft, grpo, dpo = params.sft, params.grpo, params.dpo
    rows, source = _rows(params, "sft")
    steps = None if rows is None else math.ceil(rows / sft.batch_size) * sft.num_epochs
    phases = [
        _phase(params, shape, "sft", rows=(rows, source), steps=steps, rows_a_step=sft.batch_size),
        _phase(
            params, shape, "grpo", rows=_rows(params, "grpo"), steps=grpo.max_steps,
            rows_a_step=grpo.prompts_per_step * grpo.group_size,
        ),
    ]  # fmt: skip
    for name in [name for name in params.starts if name in MINED]:
        phases.append(_sampling(params, shape, MINED[name]))
        later = None, f"{MINED[name]} has to run first"
        if name == "dpo":
            phases.append(_phase(params, shape, "dpo", rows=later, rows_a_step=dpo.batch_size))
        else:
            own = params.model_copy(update={"sft": params.raft.as_sft(sft)})
            phase = _phase(own, shape, "sft", rows=later, rows_a_step=sft.batch_size)
            phases.append(dataclasses.replace(phase, name=name, skipped=params.raft.skipped))
    return phases


def _sampling(params: Params, shape: Shape | None, name: str) -> Phase:
    """The completions that DPO's pairs or RAFT's examples are chosen from; a step is a batch."""
    pairs, rollout, model = params.dpo.pairs, params.rollout, params.model
    rows, source = _rows(params, "grpo")
    if rows is not None and pairs.num_problems:
        rows = min(rows, pairs.num_problems)
    tokens = pairs.batch_size * model.max_seq_length
    memory, seconds = {}, 0.0
    if shape is not None:
        seconds = _seconds(shape, 2, tokens=tokens, new_tokens=rollout.max_new_tokens)
        memory = sampling_memory(model, shape, pairs.batch_size)
    vllm = rollout.engine == "vllm"
    return Phase(
        name=name,
        skipped="",
        rows=rows,
        rows_from=source,
        steps=None if rows is None else math.ceil(rows * pairs.num_completions / pairs.batch_size),
        warmup_steps=None,
        completions=pairs.batch_size,
        tokens=pairs.batch_size * rollout.max_new_tokens,
        memory=memory if rollout.engine == "transformers" else {},
        vllm_share=VLLM_ALONE if vllm else 0.0,
        weights_in_share=vllm,
        seconds=seconds,
        trainer={},
    )


def _seconds(shape: Shape, work: int, *, tokens: int, new_tokens: int) -> float:
    """Of `work` operations per weight and token, and of reading all weights for each new token."""
    computed = work * shape.parameters * tokens / (UTILISATION * A100_FLOPS)
    return computed + new_tokens * 2 * shape.parameters / (UTILISATION * A100_BANDWIDTH)


def _phase(
    params: Params,
    shape: Shape | None,
    name: str,
    *,
    rows: tuple[int | None, str],
    steps: int | None = None,
    rows_a_step: int,
) -> Phase:
    section, model, rollout = getattr(params, name), params.model, params.rollout
    sequences = rows_a_step * (2 if name == "dpo" else 1)
    generates = name == "grpo"
    tokens = sequences * longest_row(params, name)
    share = 0.0
    if not rollout.device:
        if generates and rollout.engine == "vllm":
            share = rollout.gpu_memory_utilization
        elif section.eval_steps and params.validation.engine == "vllm":
            share = params.validation.gpu_memory_utilization
    seconds = 0.0
    if shape is not None:
        work = (4 if model.lora.rank else 6) + 2 * model.gradient_checkpointing + 2 * generates
        new_tokens = rollout.max_new_tokens * generates
        seconds = _seconds(shape, work, tokens=tokens, new_tokens=new_tokens)
    return Phase(
        name=name,
        skipped=section.skipped,
        rows=rows[0],
        rows_from=rows[1],
        steps=steps,
        # As transformers counts: a share below 1 is rounded up to whole steps.
        warmup_steps=None
        if steps is None
        else math.ceil(steps * min(section.warmup_ratio, 1 - 1e-9)),
        completions=sequences,
        tokens=sequences * rollout.max_new_tokens if generates else tokens,
        memory=memory_at_peak(model, shape, workload(params, name, shape)) if shape else {},
        vllm_share=share,
        weights_in_share=generates and shares_weights(model, engine=rollout.engine),
        seconds=seconds,
        trainer=micro_batches(rows_a_step, micro_batch=section.micro_batch_size, world_size=1),
    )


def _rows(params: Params, name: str) -> tuple[int | None, str]:
    """Rows of a training set, and where the number comes from."""
    prepare = params.prepare
    data, cut = getattr(prepare, name), prepare.lengths.max_tokens
    total, sources = 0, []
    for source in (entry.source for entry in data.sources):
        if isinstance(source, GeneratorSource):
            total += int(getattr(prepare.synthetic, f"num_{source.generator}"))
            sources.append("generated")
            continue
        # Of several subsets the table counts all rows.
        splits = {f"{split.hub} {split.split}" for split in hub_splits(source)}
        facts = [FACTS["sets"].get(split) for split in splits]
        if not facts or None in facts:
            return None, "prepare has to run first"
        for each in facts:
            kept = each.get("kept", {}).get(cut) if name == "sft" else None
            count = kept or each["rows"]
            total += count if source.limit == "all" else min(count, source.limit)
            note = f"within {cut} tokens" if kept else "before filters"
            sources.append(f"{each['source']}, {note}")
    if name in prepare.validation_from and prepare.validation_share:
        total = round(total * (1 - prepare.validation_share))
        sources.append(f"less {prepare.validation_share:.0%} for validation")
    limit = data.num_train_examples
    return (total if limit == "all" else min(total, limit)), "; ".join(dict.fromkeys(sources))


def disk_bytes(params: Params, shape: Shape) -> dict[str, int]:
    """Files that the stages leave, by name; a skipped phase passes a copy on."""
    model = params.model
    weights = shape.parameters * BYTES[model.dtype]
    sizes = {"base": 0 if model.name else shape.parameters * BYTES["float32"]}
    saved = shape.trained(model) * BYTES["float32"] if model.lora.rank else weights
    for name, before in params.starts.items():
        sizes[name] = sizes[before] if getattr(params, name).skipped else saved
    return {**sizes, "export": shape.parameters * BYTES[params.export.dtype]}


def fits(phase: Phase, card: int) -> bool:
    """Whether a phase has room on a GPU with `card` bytes."""
    return phase.bytes_on(card) <= card
