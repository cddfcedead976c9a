"""What a run would do, as text; `lib.planning.phases` has the numbers."""

import json
from collections.abc import Iterator
from typing import Any

from lib.engines.unsloth import shares_weights
from lib.params import Params, preset_params
from lib.params.presets import BASE
from lib.planning.phases import CARDS_GB, MINED, UTILISATION, Phase, disk_bytes, phases_of
from lib.planning.sizes import FACTS, Shape, shape_of


def plan_lines(params: Params) -> Iterator[str]:
    """The plan as text, a line each."""
    model, shape = params.model, shape_of(params.model)
    name = f"{model.name}@{model.revision[:12]}" if model.revision else model.name
    count = f"{shape.parameters / 1e6:,.1f} M parameters" if shape else "size unknown"
    yield (
        f"plan: base model {name or 'tiny Qwen3 from random weights'}: {count}, {model.dtype}, "
        f"computes in {model.mixed_precision}, attention {model.attention}, "
        f"backend {model.backend}, max_seq_length {model.max_seq_length}"
    )
    yield f"  {_trained_words(params, shape)}"
    yield f"  prompt {params.prompt.format}, layout {params.prompt.layout}"
    yield "  stages: " + " → ".join(_stages(params))
    for phase in phases_of(params, shape):
        yield from _phase_lines(phase, params)
    evaluate = params.evaluate
    yield (
        f"evaluate with {evaluate.engine}: {', '.join(evaluate.checkpoints)} on "
        f"{', '.join(evaluate.benchmarks)}; {evaluate.num_samples} samples at "
        f"T {evaluate.temperature:g}, top_p {evaluate.top_p:g}, at most "
        f"{evaluate.max_new_tokens} tokens"
    )
    if shape is None:
        yield "memory and disk: unknown without the model's config.json"
    else:
        sizes = disk_bytes(params, shape)
        yield (
            f"disk ≈ {in_bytes(sum(sizes.values()))} in data/models: {_parts(sizes)}; again in "
            "DVC's cache; beside it the Hub's files of the model, and checkpoints to resume from"
        )
    yield "estimates (lib/planning: memory, phases), not verified on a GPU; `make memory-probe`"
    for warning in params.warnings():
        yield f"warning: {warning}"
    base = preset_params(BASE).flat()
    changed = {key: value for key, value in params.flat().items() if value != base[key]}
    yield f"params: {len(changed)} of {len(base)} differ from {BASE}, which has the others"
    for key, value in changed.items():
        yield f"  {key}: {_in_words(value)} ({BASE}: {_in_words(base[key])})"


def _in_words(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _phase_lines(phase: Phase, params: Params) -> Iterator[str]:
    if phase.skipped:
        yield f"{phase.name}: skipped, {phase.skipped}"
        return
    if phase.name in MINED.values():
        yield from _sampling_lines(phase, params)
    else:
        yield from _training_lines(phase, params)
    yield from _machine_lines(phase)
    stated = FACTS["statements"].get(params.model.name, {}).get(phase.name)
    if stated:
        yield f"  the source states: {stated}"
    if phase.name == "grpo":
        yield from _grpo_lines(params)
    if phase.name == "dpo":
        yield f"  objective: loss {params.dpo.loss}, β {params.dpo.beta:g}"


def _training_lines(phase: Phase, params: Params) -> Iterator[str]:
    own = phase.name == "raft"
    section = params.raft.as_sft(params.sft) if own else getattr(params, phase.name)
    waits = f"unknown: {phase.rows_from}"
    yield (
        f"{phase.name}: steps {waits if phase.steps is None else phase.steps}, warm-up "
        f"{'unknown' if phase.warmup_steps is None else phase.warmup_steps}; "
        f"learning rate {section.learning_rate:g}, {section.lr_schedule}; "
        f"{section.optimizer} β ({section.adam_beta1:g}, {section.adam_beta2:g}), "
        f"weight decay {section.weight_decay:g}, clip {section.max_grad_norm:g}"
    )
    if phase.name not in MINED:
        rows = waits if phase.rows is None else f"{phase.rows:,} rows ({phase.rows_from})"
        yield f"  data: {rows}"
    yield "  trainer: " + ", ".join(f"{name}={value}" for name, value in phase.trainer.items())
    yield (
        f"  per step: {phase.completions} sequences, at most {phase.tokens:,} "
        f"{'completion ' if phase.name == 'grpo' else ''}tokens"
    )


def _sampling_lines(phase: Phase, params: Params) -> Iterator[str]:
    pairs = params.dpo.pairs
    init, kept = (
        (params.dpo.init, pairs.max_per_problem)
        if phase.name == "pairs"
        else (params.raft.init, params.raft.max_per_problem)
    )
    count = f"{pairs.num_problems:,}" if pairs.num_problems else "all"
    batches = "unknown" if phase.steps is None else f"{phase.steps:,}"
    yield (
        f"{phase.name}: {count} GRPO problems × {pairs.num_completions} completions of {init[0]}, "
        f"at most {kept} of each problem; engine {params.rollout.engine}"
    )
    rows = "unknown" if phase.rows is None else f"{phase.rows:,}"
    yield (
        f"  {rows} problems ({phase.rows_from}), {batches} batches of {phase.completions} "
        f"sequences, at most {phase.tokens:,} completion tokens each"
    )


def _machine_lines(phase: Phase) -> Iterator[str]:
    share = f"vLLM {phase.vllm_share:.0%} of the GPU" if phase.vllm_share else ""
    if phase.memory:
        total = f"≈ {in_bytes(sum(phase.memory.values()))}: {_parts(phase.memory)}"
        cards = [f"{gb} GB {'yes' if phase.fits(gb * 10**9) else 'no'}" for gb in CARDS_GB]
        yield f"  memory {total}{f'; {share}' if share else ''}"
        yield f"  fits one GPU of: {', '.join(cards)}"
    elif share:
        yield f"  memory: {share}"
    if phase.seconds:
        whole = f", {phase.seconds * phase.steps / 3600:.2g} h in all" if phase.steps else ""
        yield f"  time ≳ {phase.seconds:.2g} s a step{whole}, on an A100 at {UTILISATION:.0%}"


def _grpo_lines(params: Params) -> Iterator[str]:
    grpo, rollout = params.grpo, params.rollout
    sampling = {name: getattr(rollout, name) for name in ("top_p", "top_k", "min_p")}
    settings = ", ".join(f"{name} {value:g}" for name, value in sampling.items())
    beside = f"on {rollout.device}" if rollout.device else "beside the policy"
    if shares_weights(params.model, engine=rollout.engine):
        beside = "with the weights, which are the policy's own: Unsloth's fast_inference"
    share = f" (vLLM takes {rollout.gpu_memory_utilization:.0%} of the GPU {beside})"
    yield (
        f"  engine {rollout.engine}{share if rollout.engine == 'vllm' else ''}; "
        f"rollouts: {grpo.prompts_per_step} problems × {grpo.group_size} completions a step, "
        f"{grpo.max_steps * grpo.prompts_per_step * grpo.group_size:,} in all; "
        f"T {rollout.temperature:g}, {settings}, at most {rollout.max_new_tokens} tokens"
    )
    yield (
        f"  objective: loss {grpo.loss}, advantage {grpo.advantage}, β {grpo.beta:g}; "
        f"reward stack {params.reward.stack} × {' '.join(f'{w:g}' for w in params.reward.weights)}"
    )


def _stages(params: Params) -> Iterator[str]:
    yield "prepare"
    for name, init in params.starts.items():
        at = f"@{init}" if name in MINED else ""
        if at:
            yield f"{MINED[name]}{at}"
        yield f"({name} passed on)" if getattr(params, name).skipped else f"{name}{at}"
    yield f"evaluate@{{{','.join(params.evaluate.checkpoints)}}}"
    yield f"export {params.export.checkpoint}"


def _trained_words(params: Params, shape: Shape | None) -> str:
    lora = params.model.lora
    if not lora.rank:
        return "all weights are trained"
    count = f" ({shape.trained(params.model) / 1e6:,.1f} M trained)" if shape else ""
    return f"LoRA r {lora.rank} α {lora.alpha} on {', '.join(lora.target_modules)}{count}"


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
