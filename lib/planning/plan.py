"""Plan a run from params only, without torch: steps, batches, tokens, memory, disk."""

import dataclasses
import json
import math
from collections.abc import Iterator

from lib.models.unsloth import shares_weights
from lib.params import Params, facts_of, preset_params
from lib.params.data import AnySource, GeneratorSource, HubSource, KnownSource, known_sets
from lib.params.presets import BASE
from lib.params.rules import doubts
from lib.planning.memory import (
    ALONE,
    BYTES,
    Shape,
    batch_of,
    export_memory,
    longest_row,
    memory_at_peak,
    samplers_of,
    section_of,
    shape_of,
)
from lib.problems.mixture import mixture_counts
from lib.training.phase.launch import (
    Launch,
    check_whole_groups,
    launch_in_environment,
    micro_batches,
)

# As on a T4, RTX 4090 or A10G, A100 40 GB, A100 or H100 80 GB, and H200.
CARDS_GB = (16, 24, 40, 80, 141)

UNFILTERED = "before filters"
"""Note on row counts of a raw set, before `prepare` drops any row."""

GGUF_BYTES = {"f16": 2, "q8_0": 34 / 32}
"""Bytes per weight by `export.gguf`; q8_0 has a scale of two bytes for each 32 weights."""

CUDA_BYTES = 2**29
"""GPU memory of a process before its first tensor; assumed, not measured here."""

ASLEEP_BYTES = 2**30
"""GPU memory that a sleeping vLLM keeps, for its captured graphs; assumed, not measured here."""

RESIDENT = ("weights", "optimizer", "reference", "buckets", "teacher")
"""What a phase holds at every moment, generation included (`memory_at_peak`)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """The plan of a training phase, or of DPO's sampling (`pairs`).

    Attributes:
        name: sft, grpo, pairs or dpo.
        stage: the stage's name in DVC, like `dpo@sft`.
        skipped: the reason for skipping it; '' if it runs.
        rows: rows to learn from; None if only an earlier stage can count them.
        rows_from: the source of the number of rows.
        steps: optimiser steps, or sampled batches; None if `rows` is unknown, or packed into fewer.
        warmup_steps: steps with a rising learning rate.
        completions: sequences per optimiser step.
        tokens: upper bound per optimiser step; in a phase that samples, of completions only.
        memory: bytes at the peak by purpose; {} for a model of unknown shape.
        vllm_share: share of the policy's GPU for a vLLM beside it.
        shares_weights: vLLM's share holds the policy's own weights.
        sleeps: vLLM frees its share while the policy trains.
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
    sleeps: bool
    trainer: dict[str, int]

    def bytes_on(self, card: int) -> int:
        """Return the phase's bytes on a GPU with `card` bytes, vLLM and CUDA included."""
        training, vllm = sum(self.memory.values()), int(self.vllm_share * card)
        if self.sleeps:
            # While vLLM is awake, the policy holds what it holds at every moment.
            resident = sum(self.memory.get(name, 0) for name in RESIDENT)
            return max(training + ASLEEP_BYTES, resident + vllm) + CUDA_BYTES
        shared = self.memory.get("weights", 0) if self.shares_weights else 0
        return training - shared + vllm + CUDA_BYTES

    def fits(self, card: int) -> bool:
        return self.bytes_on(card) <= card


def phases_of(params: Params, shape: Shape | None, launch: Launch = ALONE) -> Iterator[Phase]:
    """Yield the plans of the phases: `sft`, `grpo` and, if params have DPO, `pairs` and `dpo`.

    Args:
        shape: None for a model of unknown shape, whose memory is not estimated.
        launch: the ranks of a phase; one process by default.

    Raises:
        UserError: the ranks of `launch` cannot share a step.
    """
    for name in ("sft", "grpo"):
        yield _phase(name, name, params, shape, launch)
    for init in params.dpo.init:
        for name in ("pairs", "dpo"):
            yield _phase(name, f"{name}@{init}", params, shape, launch)


def _phase(name: str, stage: str, params: Params, shape: Shape | None, launch: Launch) -> Phase:
    """Plan one phase: `sft`, `grpo`, `dpo`, or `pairs` for DPO's sampling.

    Args:
        stage: the stage's name in DVC, such as `dpo@sft`.
        shape: None for a model of unknown shape, whose memory is not estimated.

    Raises:
        UserError: the ranks of `launch` cannot share a step.
    """
    section, batch = section_of(params, name), batch_of(params, name)
    trains = name != "pairs"

    # `rows` is None if only an earlier stage can count them. Then the numbers computed from it by
    # `rows and …` or `steps and …` are None too.
    rows, rows_from = _rows(params, name)
    if name == "grpo":
        steps = section.max_steps
    elif trains:
        # Nobody knows before packing how many of the examples share a row.
        is_packed = name == "sft" and section.packing
        steps = None if is_packed else rows and math.ceil(rows / batch) * section.num_epochs
    else:
        # Batches of completions to sample. `num_problems` limits the rows; 0 means all.
        rows = rows and min(rows, section.num_problems or rows)
        steps = rows and math.ceil(rows * section.num_completions / batch)

    sequences = 2 * batch if name == "dpo" else batch
    generates = name in ("grpo", "pairs")
    row_tokens = params.rollout.max_new_tokens if generates else longest_row(params, name)

    # The engines that generate rollouts or validations in this phase, GRPO's for rollouts first.
    # Only the first vLLM counts below: for GRPO's validation, the vLLM of its rollouts is used.
    samplers = samplers_of(params, name)
    share = next((each.vllm_share for each in samplers if each.engine == "vllm"), 0.0)
    # With Unsloth, the first engine may be a vLLM on the policy's own weights. It generates GRPO's
    # rollouts or SFT's validations; DPO and TRL's trainer never share.
    on_policy_weights = (
        name in ("sft", "grpo")
        and getattr(section, "trainer", "") != "trl"
        and len(samplers) > 0
        and shares_weights(params.model, engine=samplers[0].engine)
    )

    trainer, of_rank = {}, params
    if trains and not section.skipped:
        micro_batch = section.micro_batch_size
        trainer = micro_batches(batch, micro_batch=micro_batch, world_size=launch.ranks)
        if name == "grpo":
            check_whole_groups(section.prompts_per_step, world_size=launch.ranks)
        of_rank = params.replaced(**{name: {"micro_batch_size": micro_batch // launch.ranks}})
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
        memory=memory_at_peak(of_rank, name, shape, launch=launch) if shape else {},
        vllm_share=share,
        shares_weights=on_policy_weights,
        sleeps=share > 0
        and trains
        and not on_policy_weights
        and getattr(section, "trainer", "") != "trl",
        trainer=trainer,
    )


def _rows(params: Params, name: str) -> tuple[int | None, str]:
    """Return a phase's number of rows, and where the number comes from.

    Examples: (7473, "the set's page, before filters"), (None, "prepare has to run first").
    """
    if name == "dpo":
        return None, "pairs has to run first"
    prepare, data_name = params.prepare, "sft" if name == "sft" else "grpo"
    data = getattr(prepare, data_name)
    # Only SFT's rows are counted within a length cut; 0 is no cut.
    cut = prepare.lengths.max_tokens if name == "sft" else 0
    counts = [_rows_of(entry.source, params, cut=cut) for entry in data.sources]
    if any(rows is None for rows, _ in counts):
        return None, "prepare has to run first"
    available = [rows or 0 for rows, _ in counts]
    origins = [origin for _, origin in counts]
    if data_name in prepare.validation_from and prepare.validation_share:
        # An expected number, since the split is by content hash, problem by problem.
        available = [round(rows * (1 - prepare.validation_share)) for rows in available]
        origins.append(f"less {prepare.validation_share:.0%} for validation")
    lengths = prepare.lengths
    if (
        prepare.near_duplicate_similarity < 1
        or prepare.contamination_ngram
        or lengths.max_tokens
        or lengths.prompt_percentile < 100
        or (data_name == "grpo" and prepare.grpo.difficulty.file)
    ) and not any(UNFILTERED in origin or "within" in origin for origin in origins):
        origins.append(UNFILTERED)
    weights = [entry.weight for entry in data.sources]
    total = sum(mixture_counts(available, weights, limit=data.num_train_examples))
    return total, "; ".join(dict.fromkeys(origins))


def _rows_of(source: AnySource, params: Params, *, cut: int = 0) -> tuple[int | None, str]:
    """Return the number of rows of a source, and its origin; (None, '') if nobody counted them.

    Args:
        cut: rows longer than this are dropped, in tokens; 0 for no limit.
    """
    if isinstance(source, GeneratorSource):
        return getattr(params.prepare.synthetic, f"num_{source.generator}"), "generated"
    entries = [known_sets()[source.known]] if isinstance(source, KnownSource) else []
    if isinstance(source, HubSource):
        # The counts are of whole known sets, not of one of several subsets, or of other files.
        part = (source.hub, source.split, [source.subset], source.files)
        entries = [
            each
            for each in known_sets().values()
            if part
            == (each["hub"], each["split"], each.get("subsets", [""]), each.get("files", ""))
        ]
    counted = next((each["rows"] for each in entries if "rows" in each), None)
    if not counted:
        return None, ""
    # Some sets have published counts within a cut (`kept`), of the whole set.
    rows_within_cut = counted.get("kept", {}).get(cut) if source.limit == "all" else None
    note = f"within {cut} tokens" if rows_within_cut else UNFILTERED
    rows = _at_most(rows_within_cut or counted["count"], source.limit)
    return rows, f"{counted['source']}, {note}"


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
    """Count prompts, completions and tokens of all validations of a phase.

    Return None without validations, or if the number of the phase's steps is unknown.
    """
    if not (phase.trainer and phase.steps):
        return None
    validation, eval_steps = params.validation, section_of(params, phase.name).eval_steps
    if not eval_steps:  # 0: no validation
        return None
    limit, rows = validation.num_problems, benchmark_rows(params)
    # The held-back set is no benchmark, and some benchmarks have no count: assume the limit.
    prompts = sum(min(limit, rows.get(name) or limit) for name in validation.sets)
    answers = prompts * (1 + validation.num_samples)
    # 1 before the first step, and one after every `eval_steps` steps and after the last step.
    completions = answers * (1 + math.ceil(phase.steps / eval_steps))
    tokens = completions * validation.max_new_tokens
    return Measurement(prompts=prompts, completions=completions, tokens=tokens)


def evaluation_of(params: Params) -> Measurement | None:
    """Count prompts, completions and tokens of the evaluation of all checkpoints.

    Return None if the size of a benchmark is unknown.
    """
    evaluate, rows = params.evaluate, benchmark_rows(params)
    prompts = completions = tokens = 0
    for name in evaluate.benchmarks:
        num_prompts, decoding = rows[name], evaluate.decoding_of(name)
        if num_prompts is None:
            return None
        per_prompt = decoding.greedy + decoding.num_samples
        num_completions = num_prompts * per_prompt * len(evaluate.checkpoints)
        prompts += num_prompts
        completions += num_completions
        tokens += num_completions * decoding.max_new_tokens
    return Measurement(prompts=prompts, completions=completions, tokens=tokens)


def _at_most(count: int, limit: int | str) -> int:
    """Return `count`, but at most `limit`; the text "all" is no limit."""
    return count if isinstance(limit, str) else min(count, limit)


def disk_bytes(params: Params, shape: Shape) -> dict[str, int]:
    """Return the bytes on disk of each checkpoint, of the export and of its GGUF file, if any.

    Example: {"base": …, "sft": …, "grpo": …, "export": …}.
    """
    model = params.model
    whole = {dtype: shape.parameters * size for dtype, size in BYTES.items()}
    # A trained checkpoint: LoRA's adapter, which PEFT saves in float32, or all weights.
    saved = shape.trained(model) * BYTES["float32"] if model.lora.rank else whole[model.dtype]
    # A base model from outside is not copied: base.json only names it. Without a name it is made
    # here, in float32.
    sizes = {"base": 0 if model.name else whole["float32"]}
    # A skipped phase passes on a copy of the checkpoint that it would start from, and SFT the
    # adapter in its place, if params name one.
    for name, start in params.starts.items():
        copied = getattr(params, name).skipped and not (name == "sft" and params.sft.adapter)
        sizes[name] = sizes[start] if copied else saved
    sizes["export"] = whole[params.export.dtype]
    if params.export.gguf != "none":
        sizes["gguf"] = int(shape.parameters * GGUF_BYTES[params.export.gguf])
    return sizes


def plan_lines(params: Params) -> Iterator[str]:
    """Format the plan of a run: phases, evaluation, memory, disk, warnings, changed params."""
    model, shape, evaluate = params.model, shape_of(params.model), params.evaluate
    name = f"{model.name}@{model.revision[:12]}" if model.revision else model.name
    size = "size unknown"
    if shape:
        trained = f"{shape.trained(model) / 1e6:,.1f} M of them trained"
        size = f"{shape.parameters / 1e6:,.1f} M parameters, {trained}"
    yield f"plan: base model {name or 'tiny Qwen3 from random weights'}: {size}"
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
    yield "estimates (lib/planning: memory, plan), not verified on a GPU; `./reckon memory-probe`"
    for line in facts_of(params).get("published", ()):
        yield f"published, not ours: {line}"
    yield from (f"warning: {each}" for each in doubts(params))
    base = preset_params(BASE).flat()
    changed = {key: value for key, value in params.flat().items() if value != base.get(key)}
    yield f"params: {len(changed)} of {len(base)} differ from {BASE}, which has the others"
    for key, value in changed.items():
        new, old = (json.dumps(each, ensure_ascii=False) for each in (value, base.get(key)))
        yield f"  {key}: {new} ({BASE}: {old})"


def _phase_lines(phase: Phase, params: Params) -> Iterator[str]:
    section, rollout = section_of(params, phase.name), params.rollout
    steps, warmup, rows = (
        "unknown" if number is None else f"{number:,}"
        for number in (phase.steps, phase.warmup_steps, phase.rows)
    )
    if phase.trainer:
        yield f"{phase.stage}: steps {steps}, warm-up {warmup}"
        yield f"  trainer: {', '.join(f'{key}={value}' for key, value in phase.trainer.items())}"
    else:
        yield f"{phase.stage}: steps {steps}, each a batch"
    # A raw count is an upper bound: filters and length cuts only drop rows.
    at_most = "at most " if UNFILTERED in phase.rows_from else ""
    yield f"  data: {at_most}{rows} rows ({phase.rows_from})"
    counted = "completion tokens" if phase.name in ("grpo", "pairs") else "tokens"
    yield f"  per step: {phase.completions} sequences, at most {phase.tokens:,} {counted}"
    memory = [_sizes(phase.memory)] if phase.memory else []
    if phase.vllm_share:
        share = f"vLLM {phase.vllm_share:.0%} of the policy's GPU"
        if phase.shares_weights:
            share += ", with the policy's own weights in it (Unsloth's fast_inference)"
        elif phase.sleeps:
            share += ", free while the policy trains"
        memory.append(share)
    if memory:
        yield f"  memory {'; '.join(memory)}"
    if phase.memory:
        # Cards are named in GB (10^9 bytes); sizes elsewhere are in GiB.
        cards = (f"{gb} GB {'yes' if phase.fits(gb * 10**9) else 'no'}" for gb in CARDS_GB)
        yield f"  fits one GPU of: {', '.join(cards)}"
    if measured := validation_of(params, phase):
        yield f"  validation with {params.validation.engine}: {measured}"
    if stated := facts_of(params).get("states", {}).get(phase.name):
        yield f"  the source states: {stated}"
    if phase.name == "grpo":
        device = f" on {rollout.device}" if rollout.device else ""
        shared = section.steps_per_rollout
        completions = section.prompts_per_step * section.group_size
        total = math.ceil(section.max_steps / shared) * completions
        every = "a step" if shared == 1 else f"every {shared} steps"
        refills = ", without dynamic sampling's" if section.dynamic_sampling else ""
        yield (
            f"  engine {rollout.engine}{device}; rollouts: {section.prompts_per_step} problems × "
            f"{section.group_size} completions {every}, {total:,} in all, at most "
            f"{total * rollout.max_new_tokens:,} tokens{refills}"
        )


def _sizes(parts: dict[str, int]) -> str:
    """Format the total and its parts: "≈ 3 GiB: weights 1 GiB, optimizer 2 GiB"."""
    listed = ", ".join(f"{name} {in_bytes(size)}" for name, size in parts.items())
    return f"≈ {in_bytes(sum(parts.values()))}: {listed}"


def in_bytes(size: float) -> str:
    """Format a number of bytes with at most three digits before the point: 1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 999.5:  # `.3g` writes 999.5 as 1e+03
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"
