"""What a run would do, as text; `lib.planning.phases` has the numbers."""

import json
from collections.abc import Iterator

from lib.params import Params, preset_params
from lib.params.presets import BASE
from lib.planning.phases import CARDS_GB, Phase, disk_bytes, phases_of
from lib.planning.sizes import FACTS, shape_of


def plan_lines(params: Params) -> Iterator[str]:
    """The plan as text, a line each."""
    model, shape, evaluate = params.model, shape_of(params.model), params.evaluate
    name = f"{model.name}@{model.revision[:12]}" if model.revision else model.name
    count = "size unknown"
    if shape:
        trained = f"{shape.trained(model) / 1e6:,.1f} M of them trained"
        count = f"{shape.parameters / 1e6:,.1f} M parameters, {trained}"
    yield (
        f"plan: base model {name or 'tiny Qwen3 from random weights'}: {count}, {model.dtype}, "
        f"computes in {model.mixed_precision}, attention {model.attention}, "
        f"backend {model.backend}, max_seq_length {model.max_seq_length}"
    )
    lora = (
        f"LoRA r {model.lora.rank} α {model.lora.alpha} on {', '.join(model.lora.target_modules)}"
    )
    yield f"  {lora if model.lora.rank else 'all weights are trained'}"
    yield f"  prompt {params.prompt.format}, layout {params.prompt.layout}"
    phases = list(phases_of(params, shape))
    stages = [f"({each.name} passed on)" if each.skipped else each.stage for each in phases]
    measured = f"evaluate@{{{','.join(evaluate.checkpoints)}}}"
    last = f"export {params.export.checkpoint}"
    yield f"  stages: {' → '.join(['prepare', *stages, measured, last])}"
    for phase in phases:
        yield from _phase_lines(phase, params)
    yield (
        f"evaluate with {evaluate.engine}: {', '.join(evaluate.checkpoints)} on "
        f"{', '.join(evaluate.benchmarks)}; {evaluate.num_samples} samples at "
        f"T {evaluate.temperature:g}, top_p {evaluate.top_p:g}, at most "
        f"{evaluate.max_new_tokens} tokens"
    )
    if shape is None:
        yield "memory and disk: unknown without the model's config.json"
    else:
        yield (
            f"disk {_sizes(disk_bytes(params, shape))}, in data/models; again in DVC's cache; "
            "beside it the Hub's files of the model, and checkpoints to resume from"
        )
    yield "estimates (lib/planning: memory, phases), not verified on a GPU; `make memory-probe`"
    yield from (f"warning: {warning}" for warning in params.warnings())
    base = preset_params(BASE).flat()
    changed = {key: value for key, value in params.flat().items() if value != base[key]}
    yield f"params: {len(changed)} of {len(base)} differ from {BASE}, which has the others"
    for key, value in changed.items():
        new, usual = (json.dumps(each, ensure_ascii=False) for each in (value, base[key]))
        yield f"  {key}: {new} ({BASE}: {usual})"


def _phase_lines(phase: Phase, params: Params) -> Iterator[str]:
    if phase.skipped:
        yield f"{phase.name}: skipped, {phase.skipped}"
        return
    section, rollout = phase.section, params.rollout
    if phase.trainer:
        yield (
            f"{phase.stage}: steps {_count(phase.steps)}, warm-up {_count(phase.warmup_steps)}; "
            f"learning rate {section.learning_rate:g}, {section.lr_schedule}; "
            f"{section.optimizer} β ({section.adam_beta1:g}, {section.adam_beta2:g}), "
            f"weight decay {section.weight_decay:g}, clip {section.max_grad_norm:g}"
        )
        yield f"  trainer: {', '.join(f'{key}={value}' for key, value in phase.trainer.items())}"
    else:
        yield (
            f"{phase.stage}: steps {_count(phase.steps)}, each a batch; {section.num_completions} "
            f"completions of each GRPO problem, at most {section.max_per_problem} pairs kept; "
            f"engine {rollout.engine}"
        )
    yield f"  data: {_count(phase.rows)} rows ({phase.rows_from})"
    yield f"  per step: {phase.completions} sequences, at most {phase.tokens:,} {phase.counted}"
    memory = [_sizes(phase.memory)] if phase.memory else []
    if phase.vllm_share:
        own = ", with the weights, which are the policy's own: Unsloth's fast_inference"
        share = f"vLLM {phase.vllm_share:.0%} of the policy's GPU"
        memory.append(share + (own if phase.shares_weights else ""))
    if memory:
        yield f"  memory {'; '.join(memory)}"
    if phase.memory:
        cards = (f"{gb} GB {'yes' if phase.fits(gb * 10**9) else 'no'}" for gb in CARDS_GB)
        yield f"  fits one GPU of: {', '.join(cards)}"
    if stated := FACTS["statements"].get(params.model.name, {}).get(phase.name):
        yield f"  the source states: {stated}"
    if phase.name == "grpo":
        names = ("temperature", "top_p", "top_k", "min_p")
        settings = ", ".join(f"{name} {getattr(rollout, name):g}" for name in names)
        yield (
            f"  engine {rollout.engine}{f' on {rollout.device}' if rollout.device else ''}; "
            f"rollouts: {section.prompts_per_step} problems × {section.group_size} completions a "
            f"step, {section.max_steps * phase.completions:,} in all; {settings}, at most "
            f"{rollout.max_new_tokens} tokens"
        )
        weights = " ".join(f"{weight:g}" for weight in params.reward.weights)
        yield (
            f"  objective: loss {section.loss}, advantage {section.advantage}, β {section.beta:g}; "
            f"reward stack {params.reward.stack} × {weights}"
        )
    if phase.name == "dpo":
        yield f"  objective: loss {section.loss}, β {section.beta:g}"


def _count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def _sizes(parts: dict[str, int]) -> str:
    listed = ", ".join(f"{name} {in_bytes(size)}" for name, size in parts.items())
    return f"≈ {in_bytes(sum(parts.values()))}: {listed}"


def in_bytes(size: int) -> str:
    """Size in the unit that leaves at most three digits before the point."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1024
    return f"{amount:.3g} TiB"
