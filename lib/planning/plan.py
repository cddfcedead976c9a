"""Plan a run from params only, without torch: steps, batches, tokens, memory, disk."""

import dataclasses
import json
import math
from collections.abc import Iterator

from lib.engines.unsloth import shares_weights
from lib.params import Params, preset_params
from lib.params.data import AnySource, GeneratorSource, hub_splits
from lib.params.load import BASE, doubts
from lib.planning.memory import (
    BYTES,
    FACTS,
    Shape,
    batch_of,
    export_memory,
    longest_row,
    memory_at_peak,
    samplers_of,
    section_of,
    shape_of,
)
from lib.training.phase.launch import Launch, launch_in_environment, micro_batches

# As on a T4, RTX 4090 or A10G, A100 40 GB, A100 or H100 80 GB, and H200.
CARDS_GB = (16, 24, 40, 80, 141)

UNFILTERED = "before filters"
"""Note on row counts of a raw set, before `prepare` drops any row."""

CUDA_BYTES = 2**29
"""GPU memory of a process before its first tensor; assumed, not measured here."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """The plan of a training phase, or of DPO's sampling (`pairs`).

    Attributes:
        name: sft, grpo, pairs or dpo.
        stage: the stage's name in DVC, like `dpo@sft`.
        skipped: the reason for skipping it; '' if it runs.
        rows: rows to learn from; None if only an earlier stage can count them.
        rows_from: the source of the number of rows.
        steps: optimiser steps, or sampled batches; None if `rows` is unknown.
        warmup_steps: steps with a rising learning rate.
        completions: sequences per optimiser step.
        tokens: upper bound per optimiser step; in a phase that samples, of completions only.
        memory: bytes at the peak by purpose; {} for a model of unknown shape.
        vllm_share: share of the policy's GPU for a vLLM beside it.
        shares_weights: vLLM's share holds the policy's own weights.
        trainer: batch arguments of the trainer; {} without training.
    """

    name: str
    stage: str
    skipped: str
    rows: int | None
    rows_from: str
    steps: int | None
    warmup_steps: int | None
    completions: int
    tokens: int
    memory: dict[str, int]
    vllm_share: float
    shares_weights: bool
    trainer: dict[str, int]

    def bytes_on(self, card: int) -> int:
        """Return the phase's bytes on a GPU with `card` bytes, vLLM and CUDA included."""
        # Shared weights are inside vLLM's share, and must not count twice.
        shared = self.memory.get("weights", 0) if self.shares_weights else 0
        return sum(self.memory.values()) - shared + int(self.vllm_share * card) + CUDA_BYTES

    def fits(self, card: int) -> bool:
        """Return True if the phase fits a GPU with `card` bytes."""
        return self.bytes_on(card) <= card


ALONE = Launch()
"""A launch of one process."""


def phases_of(params: Params, shape: Shape | None, launch: Launch = ALONE) -> Iterator[Phase]:
    """Yield the phases in order: SFT, GRPO and, if params have DPO, its sampling and its training.

    Raises:
        UserError: the ranks of `launch` cannot share a micro-batch.
    """
    for name in ("sft", "grpo"):
        yield _phase(name, name, params, shape, launch)
    for init in params.dpo.init:
        for name in ("pairs", "dpo"):
            yield _phase(name, f"{name}@{init}", params, shape, launch)


def _phase(name: str, stage: str, params: Params, shape: Shape | None, launch: Launch) -> Phase:
    """Plan one phase, or DPO's sampling; raise UserError if ranks cannot share a micro-batch."""
    section, batch = section_of(params, name), batch_of(params, name)
    trains = name != "pairs"
    rows, rows_from = _rows(params, name)
    if name == "grpo":
        steps = section.max_steps
    elif trains:
        # `rows and …`: an unknown number of rows (None) stays unknown.
        steps = rows and math.ceil(rows / batch) * section.num_epochs
    else:
        # num_problems: 0 means all.
        rows = rows and min(rows, section.num_problems or rows)
        steps = rows and math.ceil(rows * section.num_completions / batch)
    # A pair is two sequences.
    sequences = 2 * batch if name == "dpo" else batch
    samples = name in ("grpo", "pairs")
    row_tokens = params.rollout.max_new_tokens if samples else longest_row(params, name)
    samplers = samplers_of(params, name)
    shares = (each.vllm_share for each in samplers if each.engine == "vllm")
    # The first engine may share Unsloth's weights: that of GRPO's rollouts or SFT's validation.
    shared = samplers and shares_weights(params.model, engine=samplers[0].engine)
    # `of_rank`: params with one rank's part of the micro-batch.
    trainer, of_rank = {}, params
    if trains and not section.skipped:
        micro_batch = section.micro_batch_size
        trainer = micro_batches(batch, micro_batch=micro_batch, world_size=launch.ranks)
        of_rank = params.replaced(**{name: {"micro_batch_size": micro_batch // launch.ranks}})
    # Under FSDP2 the ranks share out the weights; otherwise each rank has all of them.
    held_by = launch.ranks if launch.shards else 1
    return Phase(
        name=name,
        stage=stage,
        skipped=section.skipped if trains else "",
        rows=rows,
        rows_from=rows_from,
        steps=steps,
        # As transformers counts: a share is rounded up to whole steps.
        warmup_steps=steps and math.ceil(steps * section.warmup_ratio) if trains else None,
        completions=sequences,
        tokens=sequences * row_tokens,
        memory=memory_at_peak(of_rank, name, shape, ranks=held_by) if shape else {},
        vllm_share=next(shares, 0.0),
        shares_weights=bool(shared) and name in ("sft", "grpo"),
        trainer=trainer,
    )


def _rows(params: Params, name: str) -> tuple[int | None, str]:
    """Return a phase's number of rows, and its source."""
    if name == "dpo":
        return None, "pairs has to run first"
    # DPO's sampling (`pairs`) takes GRPO's problems. `cut` is a length in tokens, 0 for no limit.
    prepare, data_name, cut = params.prepare, "grpo", 0
    if name == "sft":
        data_name, cut = "sft", prepare.lengths.max_tokens
    data = getattr(prepare, data_name)
    counts = [_rows_of(entry.source, params, cut=cut) for entry in data.sources]
    if any(rows is None for rows, _ in counts):
        return None, "prepare has to run first"
    total = sum(rows or 0 for rows, _ in counts)
    sources = [note for _, note in counts]
    if data_name in prepare.validation_from and prepare.validation_share:
        # An expected number, since the split is by content hash, problem by problem.
        total = round(total * (1 - prepare.validation_share))
        sources.append(f"less {prepare.validation_share:.0%} for validation")
    return _at_most(total, data.num_train_examples), "; ".join(dict.fromkeys(sources))


def _rows_of(source: AnySource, params: Params, *, cut: int = 0) -> tuple[int | None, str]:
    """Return the number of rows of a source, and its origin; (None, '') if nobody counted them.

    Args:
        cut: rows longer than this are dropped, in tokens; 0 for no limit.
    """
    if isinstance(source, GeneratorSource):
        return getattr(params.prepare.synthetic, f"num_{source.generator}"), "generated"
    # Several subsets are one set here: the table counts the rows of all of them.
    splits = {f"{split.hub} {split.split}" for split in hub_splits(source)}
    facts = FACTS["sets"].get(splits.pop()) if splits else None
    if not facts:
        return None, ""
    kept = facts.get("kept", {}).get(cut)
    # facts.yaml has published counts for some length cuts (`kept`).
    note = f"within {cut} tokens" if kept else UNFILTERED
    return _at_most(kept or facts["rows"], source.limit), f"{facts['source']}, {note}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """Totals of all validations of a phase, or of the evaluation; `tokens` is an upper bound."""

    prompts: int
    completions: int
    tokens: int

    def __str__(self) -> str:
        counts = f"{self.prompts:,} prompts, {self.completions:,} completions in all"
        return f"{counts}, at most {self.tokens:,} tokens"


def benchmark_rows(params: Params) -> dict[str, int | None]:
    """Return each benchmark's rows before filters; None if nobody has counted them."""
    return {each.name: _rows_of(each.source, params)[0] for each in params.prepare.benchmarks}


def validation_of(params: Params, phase: Phase) -> Measurement | None:
    """Count the completions of a phase's validations; None without validation or known steps."""
    if not (phase.trainer and phase.steps):
        return None
    validation, every = params.validation, section_of(params, phase.name).eval_steps
    if not every:
        return None
    most, rows = validation.num_problems, benchmark_rows(params)
    # The held-back set is no benchmark and has no count: assume the most.
    prompts = sum(min(most, rows.get(name) or most) for name in validation.sets)
    # 1 before the first step, and one after every `eval_steps` steps and after the last step.
    completions = prompts * (1 + math.ceil(phase.steps / every))
    tokens = completions * validation.max_new_tokens
    return Measurement(prompts=prompts, completions=completions, tokens=tokens)


def evaluation_of(params: Params) -> Measurement | None:
    """Count the completions of all evaluations; None if the size of a benchmark is unknown."""
    evaluate, rows = params.evaluate, benchmark_rows(params)
    prompts = completions = tokens = 0
    for name in evaluate.benchmarks:
        count, decoding = rows[name], evaluate.decoding_of(name)
        if count is None:
            return None
        set_completions = (
            count * (decoding.greedy + decoding.num_samples) * len(evaluate.checkpoints)
        )
        prompts += count
        completions += set_completions
        tokens += set_completions * decoding.max_new_tokens
    return Measurement(prompts=prompts, completions=completions, tokens=tokens)


def _at_most(count: int, limit: int | str) -> int:
    """Return the number of rows, at most `limit`; "all" is no limit."""
    # The only text is "all".
    return count if isinstance(limit, str) else min(count, limit)


def disk_bytes(params: Params, shape: Shape) -> dict[str, int]:
    """Return the bytes of each checkpoint and the export; a skipped phase copies its start."""
    model = params.model
    whole = {dtype: shape.parameters * size for dtype, size in BYTES.items()}
    # PEFT keeps and saves adapters in float32.
    saved = shape.trained(model) * BYTES["float32"] if model.lora.rank else whole[model.dtype]
    # A base model from outside is not copied: base.json only names it.
    sizes = {"base": 0 if model.name else whole["float32"]}
    for name, before in params.starts.items():
        sizes[name] = sizes[before] if getattr(params, name).skipped else saved
    return {**sizes, "export": whole[params.export.dtype]}


def plan_lines(params: Params) -> Iterator[str]:
    """Format the plan of a run: phases, evaluation, memory, disk, warnings, changed params."""
    model, shape, evaluate = params.model, shape_of(params.model), params.evaluate
    name = f"{model.name}@{model.revision[:12]}" if model.revision else model.name
    count = "size unknown"
    if shape:
        trained = f"{shape.trained(model) / 1e6:,.1f} M of them trained"
        count = f"{shape.parameters / 1e6:,.1f} M parameters, {trained}"
    yield f"plan: base model {name or 'tiny Qwen3 from random weights'}: {count}"
    launch = launch_in_environment()
    if launch.ranks > 1:
        yield f"  LAUNCH starts {launch}"
    phases = list(phases_of(params, shape, launch))
    stages = [f"({each.name} passed on)" if each.skipped else each.stage for each in phases]
    last = f"evaluate@{{{','.join(evaluate.checkpoints)}}} → export {params.export.checkpoint}"
    yield f"  stages: {' → '.join(['prepare', *stages, last])}"
    for phase in phases:
        if phase.skipped:
            yield f"{phase.name}: skipped, {phase.skipped}"
        else:
            yield from _phase_lines(phase, params)
    yield (
        f"evaluate with {evaluate.engine}: {', '.join(evaluate.checkpoints)} on "
        f"{', '.join(evaluate.benchmarks)}"
    )
    yield f"  {evaluation_of(params) or 'unknown before `prepare` has counted the benchmarks'}"
    if shape is None:
        yield "memory and disk: unknown without the model's config.json"
    else:
        yield f"export: memory {_sizes(export_memory(params, shape))}"
        yield (
            f"disk {_sizes(disk_bytes(params, shape))}, in data/models; again in DVC's cache; "
            "plus the Hub's files of the model, and checkpoints to resume from"
        )
    yield "estimates (lib/planning: memory, plan), not verified on a GPU; `make memory-probe`"
    # Times of other people's runs of this model (facts.yaml).
    for line in FACTS["published"].get(model.name, ()):
        yield f"published, not ours: {line}"
    yield from (f"warning: {each}" for each in doubts(params))
    base = preset_params(BASE).flat()
    changed = {key: value for key, value in params.flat().items() if value != base[key]}
    yield f"params: {len(changed)} of {len(base)} differ from {BASE}, which has the others"
    for key, value in changed.items():
        new, usual = (json.dumps(each, ensure_ascii=False) for each in (value, base[key]))
        yield f"  {key}: {new} ({BASE}: {usual})"


def _phase_lines(phase: Phase, params: Params) -> Iterator[str]:
    """Format a phase's steps, data, memory, fitting cards, validation and rollouts."""
    section, rollout = section_of(params, phase.name), params.rollout
    steps, warmup, rows = (
        "unknown" if number is None else f"{number:,}"
        for number in (phase.steps, phase.warmup_steps, phase.rows)
    )
    # A raw count is an upper bound: filters and length cuts only drop rows.
    most = "at most " if UNFILTERED in phase.rows_from else ""
    if phase.trainer:
        yield f"{phase.stage}: steps {steps}, warm-up {warmup}"
        yield f"  trainer: {', '.join(f'{key}={value}' for key, value in phase.trainer.items())}"
    else:
        # DPO's sampling (`pairs`) has no trainer; each of its steps samples one batch.
        yield f"{phase.stage}: steps {steps}, each a batch"
    yield f"  data: {most}{rows} rows ({phase.rows_from})"
    counted = "completion tokens" if phase.name in ("grpo", "pairs") else "tokens"
    yield f"  per step: {phase.completions} sequences, at most {phase.tokens:,} {counted}"
    memory = [_sizes(phase.memory)] if phase.memory else []
    if phase.vllm_share:
        own = ", with the policy's own weights in it (Unsloth's fast_inference)"
        share = f"vLLM {phase.vllm_share:.0%} of the policy's GPU"
        memory.append(share + (own if phase.shares_weights else ""))
    if memory:
        yield f"  memory {'; '.join(memory)}"
    if phase.memory:
        # Cards are named in GB (10^9 bytes); sizes elsewhere are in GiB.
        cards = (f"{gb} GB {'yes' if phase.fits(gb * 10**9) else 'no'}" for gb in CARDS_GB)
        yield f"  fits one GPU of: {', '.join(cards)}"
    if measured := validation_of(params, phase):
        yield f"  validation with {params.validation.engine}: {measured}"
    # What the authors of the source system say about this model's steps and time (facts.yaml).
    if stated := FACTS["statements"].get(params.model.name, {}).get(phase.name):
        yield f"  the source states: {stated}"
    if phase.name == "grpo":
        yield (
            f"  engine {rollout.engine}{f' on {rollout.device}' if rollout.device else ''}; "
            f"rollouts: {section.prompts_per_step} problems × {section.group_size} completions a "
            f"step, {section.max_steps * phase.completions:,} in all, at most "
            f"{section.max_steps * phase.tokens:,} tokens"
        )


def _sizes(parts: dict[str, int]) -> str:
    """Format the total and its parts: "≈ 3 GiB: weights 1 GiB, optimizer 2 GiB"."""
    listed = ", ".join(f"{name} {in_bytes(size)}" for name, size in parts.items())
    return f"≈ {in_bytes(sum(parts.values()))}: {listed}"


def in_bytes(size: float) -> str:
    """Format a number of bytes with at most three digits before the point: 1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"
