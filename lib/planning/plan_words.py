"""The plan of a run in words; its numbers stand in `lib.planning.plan`."""

import json
from collections.abc import Iterator
from typing import Any

from lib.engines.unsloth import shares_weights
from lib.params import Params, preset_params
from lib.params.model import Model
from lib.params.presets import BASE
from lib.params.training import Optimisation
from lib.planning.plan import (
    Phase,
    disk_bytes,
    plan_dpo,
    plan_grpo,
    plan_sft,
    trained_parameters,
)
from lib.planning.sizes import Shape, shape_of


def plan_lines(params: Params) -> Iterator[str]:
    """The plan as text, a line each."""
    model, shape = params.model, shape_of(params.model)
    yield f"plan: base model {_model_words(model, shape)}"
    yield f"  {_lora_words(params, shape)}"
    yield f"  prompt {params.prompt.format}, layout {params.prompt.layout}"
    yield "  stages: " + " → ".join(_stages(params))
    yield from _phase_lines(plan_sft(params, shape), params.sft)
    yield from _phase_lines(plan_grpo(params, shape), params.grpo)
    yield from _grpo_words(params)
    if params.dpo.init:
        yield from _phase_lines(plan_dpo(params, shape), params.dpo)
        yield from _dpo_words(params)
    yield _evaluation_words(params)
    if shape is None:
        yield "memory and disk: unknown without the model's config.json"
    else:
        sizes = disk_bytes(params, shape)
        yield (
            f"disk ≈ {in_bytes(sum(sizes.values()))} in data/models: {_parts(sizes)}; again in "
            "DVC's cache; beside it the Hub's files of the model, and checkpoints to resume from"
        )
    yield "estimates; the formulae stand in lib/planning/plan.py, `make memory-probe` measures"
    yield from _params_lines(params)


def _params_lines(params: Params) -> Iterator[str]:
    base = preset_params(BASE).flat()
    changed = {key: value for key, value in params.flat().items() if value != base[key]}
    yield f"params: {len(changed)} of {len(base)} differ from {BASE}, which has the others"
    for key, value in changed.items():
        yield f"  {key}: {_in_words(value)} ({BASE}: {_in_words(base[key])})"


def _in_words(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _phase_lines(phase: Phase, section: Optimisation) -> Iterator[str]:
    if phase.skipped:
        yield f"{phase.name}: skipped, {phase.skipped}"
        return
    counted_by = "pairs" if phase.name == "dpo" else "prepare"
    steps = phase.steps if phase.steps is not None else f"unknown until {counted_by} has run"
    yield (
        f"{phase.name}: steps {steps}, warm-up {_or_unknown(phase.warmup_steps)}; "
        f"learning rate {section.learning_rate:g}, {section.lr_schedule}; "
        f"{section.optimizer} β ({section.adam_beta1:g}, {section.adam_beta2:g}), "
        f"weight decay {section.weight_decay:g}, clip {section.max_grad_norm:g}"
    )
    if phase.name != "dpo":
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
    settings = ", ".join(f"{name} {value:g}" for name, value in sampling.items())
    rewards = " ".join(f"{weight:g}" for weight in params.reward.weights)
    beside = "beside the policy"
    if shares_weights(params.model, engine=rollout.engine):
        beside = "with the weights, which are the policy's own: Unsloth's fast_inference"
    share = f" (vLLM takes {rollout.gpu_memory_utilization:.0%} of the GPU {beside})"
    yield (
        f"  engine {rollout.engine}{share if rollout.engine == 'vllm' else ''}; "
        f"rollouts: {grpo.prompts_per_step} problems × {grpo.group_size} completions a step, "
        f"{grpo.max_steps * grpo.prompts_per_step * grpo.group_size:,} in all; {settings}, "
        f"at most {rollout.max_new_tokens} tokens"
    )
    yield (
        f"  objective: loss {grpo.loss}, advantage {grpo.advantage}, β {grpo.beta:g}; "
        f"reward stack {params.reward.stack} × {rewards}"
    )


def _dpo_words(params: Params) -> Iterator[str]:
    dpo, pairs = params.dpo, params.dpo.pairs
    if dpo.skipped:
        return
    count = f"{pairs.num_problems:,}" if pairs.num_problems else "all"
    yield (
        f"  pairs: {count} GRPO problems × {pairs.num_completions} completions of {dpo.init[0]}, "
        f"at most {pairs.max_per_problem} of each problem"
    )
    yield f"  objective: loss {dpo.loss}, β {dpo.beta:g}"


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
    for init in params.dpo.init:
        phases += [f"pairs@{init}", "(dpo passed on)" if params.dpo.skipped else f"dpo@{init}"]
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
