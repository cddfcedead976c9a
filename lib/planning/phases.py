"""The phases of a run, from params only: steps, tokens, memory, disk. No torch is needed."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Literal

from lib.engines.unsloth import shares_weights
from lib.params import Params
from lib.params.data import GeneratorSource
from lib.planning.memory import batch_of, generators, longest_row, memory_at_peak, section_of
from lib.planning.sizes import BYTES, FACTS, Shape
from lib.problems.known import hub_splits
from lib.training.batches import micro_batches

CARDS_GB = (24, 40, 80, 141)

CUDA_BYTES = 2**29
"""What a process takes of a GPU before it holds a tensor; assumed, not measured here."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """One training phase, or the sampling before one.

    Attributes:
        stage: as DVC names it.
        section: of params, that sets its batches.
        knob: the param that lowers its memory.
        skipped: why it is, '' where it runs.
        rows: that it learns from; None where only an earlier stage can count them.
        rows_from: where that number comes from.
        steps: optimiser steps, or batches that are sampled; None where rows are not known.
        warmup_steps: of those, with a rising learning rate.
        completions: sequences per optimiser step.
        tokens: at most, per optimiser step; `counted` says of what.
        memory: bytes at the peak, by what they hold; {} for a model of unknown shape.
        vllm_share: of the policy's GPU, for a vLLM beside it.
        shares_weights: vLLM's share holds the policy's own weights.
        trainer: what the trainer is given for the batch; {} where nothing is trained.
    """

    name: str
    stage: str
    section: Any
    knob: str
    skipped: str
    rows: int | None
    rows_from: str
    steps: int | None
    warmup_steps: int | None
    completions: int
    tokens: int
    counted: str
    memory: dict[str, int]
    vllm_share: float
    shares_weights: bool
    trainer: dict[str, int]

    def bytes_on(self, card: int) -> int:
        """What the phase takes of a GPU with `card` bytes."""
        shared = self.memory.get("weights", 0) if self.shares_weights else 0
        return sum(self.memory.values()) - shared + int(self.vllm_share * card) + CUDA_BYTES

    def fits(self, card: int) -> bool:
        """Whether it has room on a GPU with `card` bytes."""
        return self.bytes_on(card) <= card


def phases_of(params: Params, shape: Shape | None) -> Iterator[Phase]:
    """The phases in their order; DPO, with the sampling before it, where params have it."""
    yield _phase("sft", params, shape)
    yield _phase("grpo", params, shape)
    for init in params.dpo.init:
        yield _phase("pairs", params, shape, start=init)
        yield _phase("dpo", params, shape, start=init)


def _phase(name: str, params: Params, shape: Shape | None, *, start: str = "") -> Phase:
    """One phase; `start` is the checkpoint that an optional one starts from."""
    model, rollout, section = params.model, params.rollout, section_of(params, name)
    batch, longest = batch_of(params, name), longest_row(params, name)
    trains, samples = name != "pairs", name in ("grpo", "pairs")
    sequences = 2 * batch if name == "dpo" else batch
    new_tokens = rollout.max_new_tokens * samples

    if name == "dpo":
        rows, rows_from = None, "pairs has to run first"
    else:
        rows, rows_from = _rows(params, "sft" if name == "sft" else "grpo")
    if name == "grpo":
        steps = section.max_steps
    elif trains:
        steps = rows and math.ceil(rows / batch) * section.num_epochs
    else:
        rows = rows and min(rows, section.num_problems or rows)
        steps = rows and math.ceil(rows * section.num_completions / batch)
    shares = (share for engine, share, _ in generators(params, name) if engine == "vllm")
    return Phase(
        name=name,
        stage=f"{name}@{start}" if start else name,
        section=section,
        knob=f"{name}.micro_batch_size" if trains else "dpo.pairs.batch_size",
        skipped=getattr(params, name).skipped if trains else "",
        rows=rows,
        rows_from=rows_from,
        steps=steps,
        # As transformers counts: a share is rounded up to whole steps.
        warmup_steps=steps and math.ceil(steps * section.warmup_ratio) if trains else None,
        completions=sequences,
        tokens=sequences * (new_tokens or longest),
        counted="completion tokens" if samples else "tokens",
        memory=memory_at_peak(params, name, shape) if shape else {},
        vllm_share=next(shares, 0.0),
        shares_weights=name == "grpo" and shares_weights(model, engine=rollout.engine),
        trainer=micro_batches(batch, micro_batch=section.micro_batch_size, world_size=1)
        if trains
        else {},
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
        for split in {f"{split.hub} {split.split}" for split in hub_splits(source)} or {""}:
            if split not in FACTS["sets"]:
                return None, "prepare has to run first"
            facts = FACTS["sets"][split]
            kept = facts.get("kept", {}).get(cut) if name == "sft" else None
            total += _at_most(kept or facts["rows"], source.limit)
            note = f"within {cut} tokens" if kept else "before filters"
            sources.append(f"{facts['source']}, {note}")
    if name in prepare.validation_from and prepare.validation_share:
        total = round(total * (1 - prepare.validation_share))
        sources.append(f"less {prepare.validation_share:.0%} for validation")
    return _at_most(total, data.num_train_examples), "; ".join(dict.fromkeys(sources))


def _at_most(count: int, limit: int | Literal["all"]) -> int:
    return count if limit == "all" else min(count, limit)


def disk_bytes(params: Params, shape: Shape) -> dict[str, int]:
    """Files that the stages leave, by name; a skipped phase passes a copy on."""
    model = params.model
    whole = {dtype: shape.parameters * size for dtype, size in BYTES.items()}
    adapter = shape.trained(model) * BYTES["float32"]
    sizes = {"base": 0 if model.name else whole["float32"]}
    for name, before in params.starts.items():
        saved = adapter if model.lora.rank else whole[model.dtype]
        sizes[name] = sizes[before] if getattr(params, name).skipped else saved
    return {**sizes, "export": whole[params.export.dtype]}
