"""Rules between the sections of params.yaml, by kind, each in one place.

    conflicts      contradictions, refused with an error
    warnings       valid settings that are probably a mistake
    idle_params    changed settings that have no effect with the other settings

A rule within one section is one of its `contradictions`, beside its fields. `lib.planning.inputs`
checks files, `lib.planning.doctor` the machine, the training phases lengths in tokens.

With one optimiser step per batch of rollouts (`grpo.num_iterations: 1`), the updated policy is the
sampling policy, so that the probability ratio is 1 at every gradient. Clipping, bounds and averages
of the ratio then change nothing, and losses that differ only in these have the same gradient.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lib.core.errors import UserError
from lib.core.plugins import is_plugin, label
from lib.engines.registry import ENGINES
from lib.objectives import LOSSES
from lib.params.data import GeneratorSource
from lib.params.model import Decoding, lost_updates
from lib.params.schema import Params
from lib.params.section import HELD_BACK_SET, suggest
from lib.params.training import Optimisation, RolloutSampling, Validation
from lib.prompts import prompt_format
from lib.rewards.functions import Grading, rewards_of

ACCEPTABLE_LOSS = 0.05
"""Acceptable share of bfloat16 weights without an update. Learning rates of 2e-4 and more have a
smaller share."""

OFF_POLICY = "set grpo.num_iterations to 2 or more: with 1, the probability ratio is 1"
"""Remedy for settings of the probability ratio that have no effect while it is 1."""


def conflicts(params: Params) -> Iterator[str]:
    """Yield a line for each contradiction between sections."""
    rules = (_unknown_sets, _selection, _lengths, _rewards, _trl, _unsloth, _devices, _checkpoints)
    for rule in rules:
        yield from rule(params)
    if params.prepare.grpo.difficulty.easy_first and params.grpo.shuffle:
        yield (
            "prepare.grpo.difficulty.easy_first: has no effect while grpo.shuffle is true; "
            "set that to false"
        )


def _unknown_sets(params: Params) -> Iterator[str]:
    """List names of sets that `prepare` does not write."""
    # Users choose the names of benchmarks, in the section `prepare`.
    benchmarks = [benchmark.name for benchmark in params.prepare.benchmarks]
    for key, names, known in (
        ("evaluate.benchmarks", params.evaluate.benchmarks, benchmarks),
        ("validation.sets", params.validation.sets, [*benchmarks, HELD_BACK_SET]),
    ):
        for name in names:
            if name not in known:
                yield f"{key}: no `{name}`; {suggest(name, known)}"
    if HELD_BACK_SET in params.validation.sets and not params.prepare.validation_share:
        yield (
            "validation.sets: nothing is held back while prepare.validation_share is 0; "
            "raise it, or name a benchmark"
        )


def _selection(params: Params) -> Iterator[str]:
    """List phases with `select: best` that are not validated on the held-back set."""
    # Not on a benchmark: selection on it would bias its numbers in the report upwards.
    held_back = HELD_BACK_SET in params.validation.sets
    for name in params.starts:
        phase: Optimisation = getattr(params, name)
        if phase.select == "best" and not (phase.skipped or (phase.eval_steps and held_back)):
            yield (
                f"{name}.select: best is measured on the held-back set; add "
                f"`{HELD_BACK_SET}` to validation.sets, and set {name}.eval_steps above 0"
            )


def _lengths(params: Params) -> Iterator[str]:
    """List settings of `max_new_tokens` that leave no token for the prompt."""
    longest = params.model.max_seq_length
    sections: dict[str, RolloutSampling | Decoding | Validation] = {
        "rollout": params.rollout,
        "evaluate": params.evaluate,
        "validation": params.validation,
        **{f"evaluate.overrides.{each.benchmark}": each for each in params.evaluate.overrides},
    }
    for key, section in sections.items():
        # `>=`, since a prompt needs at least one token.
        if section.max_new_tokens >= longest:
            yield (
                f"{key}.max_new_tokens: {section.max_new_tokens} is not below "
                f"model.max_seq_length={longest}, which holds prompt and completion together"
            )


def _rewards(params: Params) -> Iterator[str]:
    """List reward stacks with the wrong number of weights, and rewards without the tags they read.

    A reward that counts tags needs a prompt format with these tags.
    """
    reward, validation = params.reward, params.validation
    # Validation has its own weights: its curve stays comparable when rewards change.
    training_rewards, validation_rewards = reward.names, rewards_of(validation.stack)
    for key, names, weights in (
        ("reward", training_rewards, reward.weights),
        ("validation", validation_rewards, validation.weights),
    ):
        if len(names) != len(weights):
            yield (
                f"{key}.weights: {len(weights)} weights for "
                f"{len(names)} functions ({', '.join(map(label, names))})"
            )
    # Without plugins, since stages before GRPO do not depend on their files; `check` tries them.
    registered = [name for name in (*training_rewards, *validation_rewards) if not is_plugin(name)]
    settings = reward.settings(max_completion_tokens=params.rollout.max_new_tokens)
    # Grading raises if a reward reads tags that the format does not write.
    try:
        Grading(registered, prompt_format=prompt_format(**params.prompt.rendering), **settings)
    except UserError as error:
        yield error.message


def _trl(params: Params) -> Iterator[str]:
    """List settings that TRL 1.14's `GRPOTrainer` does not support; it would ignore some silently.

    Also lists `updates_per_rollout` above 1 with reckon's own trainer.
    """
    grpo, model, rollout, validation = params.grpo, params.model, params.rollout, params.validation
    if grpo.trainer != "trl" and grpo.updates_per_rollout > 1:
        yield (
            f"grpo.updates_per_rollout={grpo.updates_per_rollout}: trainer reckon takes one step "
            "on all of a generation's completions; use 1, or grpo.trainer: trl"
        )
    if grpo.trainer != "trl" or grpo.skipped:
        return
    try:
        stops = bool(prompt_format(**params.prompt.rendering).stop_strings)
    except UserError:
        # `_rewards` reports the unknown format.
        stops = False
    # Unsupported setting → True if params have it.
    lacking = {
        # TRL's `scale_rewards` is group, batch or none, and none is our `mean`.
        f"grpo.advantage: {grpo.advantage}": grpo.advantage not in ("group", "batch", "mean"),
        f"grpo.loss: {grpo.loss}": grpo.loss == "reinforce" or is_plugin(grpo.loss),
        f"grpo.dynamic_sampling: {grpo.dynamic_sampling}": grpo.dynamic_sampling > 0,
        "rollout.engine: vllm-server": rollout.engine == "vllm-server",
        # A process has room for one vLLM, and TRL does not expose its own.
        "validation.engine: vllm beside its own engine": (
            {rollout.engine, validation.engine} == {"vllm"} and grpo.eval_steps > 0
        ),
        # TRL counts a completion without EOS as truncated, if it stops there at all.
        f"prompt.format: {params.prompt.format}, whose stop strings end a completion": stops,
        # TRL loads the reference policy from files, which lack the new tokens' rows.
        "grpo.beta above 0 on full weights with model.tag_tokens": (
            grpo.beta > 0 and not model.lora.rank and model.tag_tokens
        ),
    }
    if any(lacking.values()):
        what = "; ".join(name for name, lacks in lacking.items() if lacks)
        yield f"grpo.trainer=trl cannot do: {what}. Use grpo.trainer: reckon"


def _on_policy_weights(params: Params) -> list[str]:
    """Return the keys of the engines on the policy's own weights, like ["rollout.engine"].

    Only Unsloth's vLLM shares the weights: [] for another backend or engine.
    """
    engines = {
        "rollout.engine": params.rollout.engine,
        "validation.engine": params.validation.engine,
    }
    # Unsloth's `fast_inference` has one copy of the weights for training and vLLM.
    unsloth = params.model.backend == "unsloth"
    return [key for key, name in engines.items() if unsloth and ENGINES[name].below_unsloth]


def _unsloth(params: Params) -> Iterator[str]:
    """List settings that Unsloth 2026.10.7 refuses or replaces."""
    model, shared = params.model, _on_policy_weights(params)
    casts = params.grpo.cast_lm_head_to_fp32
    if casts and "lm_head" in model.lora.target_modules:
        yield (
            "grpo.cast_lm_head_to_fp32: an output layer with an adapter keeps its type; take "
            "lm_head out of model.lora.target_modules, or set it to false"
        )
    if model.backend != "unsloth":
        return
    other = f"or {' and '.join(shared)} to transformers"
    # Message → truthy if the fault is there. Two messages are about `shared`, and apply only if it
    # is not empty.
    refused = {
        "model.tag_tokens: backend unsloth cannot add tokens; set it to false": model.tag_tokens,
        f"model.attention={model.attention}: backend unsloth chooses its own; leave it at sdpa": (
            model.attention != "sdpa"
        ),
        f"{''.join(shared[:1])}=vllm: backend unsloth shares its weights with vLLM only under "
        f"LoRA; set model.lora.rank, {other}": shared and not model.lora.rank,
        f"model.dtype={model.dtype}: backend unsloth shares only weights of 16 bits with vLLM; "
        f"set it to bfloat16, {other}": shared and model.dtype != "bfloat16",
        "grpo.cast_lm_head_to_fp32: backend unsloth computes logits with kernels of its own; set "
        "it to false, or model.backend to transformers": casts,
    }
    yield from (fault for fault, applies in refused.items() if applies)


def _devices(params: Params) -> Iterator[str]:
    """Report a `rollout.device` without an engine to use it: it would be ignored silently."""
    grpo, rollout, validation = params.grpo, params.rollout, params.validation
    shared = _on_policy_weights(params)
    # The engines that this run opens on a GPU of their own.
    engines = []
    # TRL opens its own engine, and a shared one is on the policy's GPU: neither takes a device.
    if not (grpo.skipped or grpo.trainer == "trl" or "rollout.engine" in shared):
        engines.append(rollout.engine)
    # Phase → the engine that keeps its validation on the policy's GPU if it shares the weights.
    # GRPO validates with the engine of its rollouts.
    validates_beside = {"sft": "validation.engine", "grpo": "rollout.engine", "dpo": ""}
    for name in params.starts:
        phase: Optimisation = getattr(params, name)
        if phase.eval_steps and not (phase.skipped or validates_beside[name] in shared):
            engines.append(validation.engine)
    if rollout.device and not any(ENGINES[engine].takes_device for engine in engines):
        kind = " on the policy's own weights (backend unsloth)" * ("rollout.engine" in shared)
        yield (
            f"rollout.device={rollout.device}: no engine of this run takes it (rollouts: "
            f"{grpo.skipped or rollout.engine + kind}; validation: {validation.engine}); "
            "set it to '', or one of them to vllm"
        )


def _checkpoints(params: Params) -> Iterator[str]:
    """List faults of DPO, evaluation and export: a checkpoint not made, measured or exportable."""
    measured = params.evaluate.checkpoints
    if not params.dpo.init and "dpo" in measured:
        yield (
            "evaluate.checkpoints: `dpo` is listed, but dpo.init is [], so that no stage makes "
            "it; set dpo.init to [sft] or [grpo]"
        )
    for init in params.dpo.init:
        # The effect of DPO is the difference of the two checkpoints.
        if missing := [name for name in ("dpo", init) if name not in measured]:
            yield (
                f"evaluate.checkpoints: dpo.init is [{init}], and without `{missing[0]}` in "
                "the list its effect cannot be measured; add it"
            )
    if params.export.gguf != "none" and not params.model.name:
        yield (
            f"export.gguf={params.export.gguf}: llama.cpp cannot split texts as the tokenizer "
            "made for model.tiny does; name a model in model.name, or set none"
        )
    # The model card quotes reports/metrics, which has only evaluated checkpoints.
    if params.export.checkpoint not in measured:
        yield (
            f"export.checkpoint: `{params.export.checkpoint}` is not in evaluate.checkpoints "
            f"({', '.join(measured)}); the model card needs its numbers"
        )


def warnings(params: Params) -> list[str]:
    """Warn of learning rates too small for bfloat16 weights: rounding undoes most updates."""
    # PEFT keeps adapters in float32, where small updates are not lost.
    if params.model.dtype != "bfloat16" or params.model.lora.rank:
        return []
    phases = {name: getattr(params, name) for name in params.starts}
    return [
        f"{name}.learning_rate: {phase.learning_rate:g} on bfloat16 weights leaves "
        f"{lost_updates(phase.learning_rate):.0%} of them unchanged, however many steps "
        "agree; set model.dtype: float32 with model.mixed_precision: bf16"
        for name, phase in phases.items()
        if not phase.skipped and lost_updates(phase.learning_rate) > ACCEPTABLE_LOSS
    ]


def idle_params(params: Params, preset: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each param that differs from `preset` without effect, with the remedy.

    Args:
        preset: values by dotted key, of the preset that `params` came from.
    """
    values = params.flat()
    for key, remedy in remedies(params).items():
        both = values[key], preset[key]
        # A changed loss has no effect only if it averages over tokens as the preset's does.
        if both[0] != both[1] and (key != "grpo.loss" or have_one_gradient(*both)):
            yield f"{key}={values[key]} has no effect (preset: {preset[key]}); {remedy}"


def remedies(params: Params) -> dict[str, str]:
    """Return the params without effect: dotted key → the change of params to give it one."""
    rules = list(_without_effect(params))
    # If several patterns match a key, the last one sets its remedy. It is the widest, for example
    # of a whole skipped phase, and its change is needed first.
    return {
        key: remedy
        for key in params.flat()
        for pattern, remedy in rules
        if re.fullmatch(pattern, key)
    }


def have_one_gradient(loss: str, other: str) -> bool:
    """Return True if two losses have the same gradient while the probability ratio is 1."""
    # A plugin's loss has no facts (None): its gradient is not known, and it is never idle.
    facts = LOSSES.get(loss), LOSSES.get(other)
    return bool(facts[0] and facts[1] and facts[0].average == facts[1].average)


def _without_effect(params: Params) -> Iterator[tuple[str, str]]:
    """Yield regular expressions of dotted keys without effect, each with its remedy.

    Narrow patterns come first, wide ones last. `sft\\.(?!num_epochs).*` is every key of `sft`
    except num_epochs.
    """
    model, reward, grpo = params.model, params.reward, params.grpo
    rollout, validation, prepare = params.rollout, params.validation, params.prepare
    if grpo.num_iterations * grpo.updates_per_rollout == 1:
        yield r"grpo\.(epsilon|epsilon_high|delta)", OFF_POLICY
        yield r"grpo\.loss", f"{OFF_POLICY}, and both losses have the same gradient"
        if not (grpo.beta and grpo.kl_weighted):  # the weighted KL's gradient uses the ratio
            yield r"grpo\.importance_level", OFF_POLICY
    if not grpo.beta:
        yield r"grpo\.kl_weighted", "set grpo.beta above 0"
    # A live engine samples with the policy's own weights: there is no gap to correct.
    if ENGINES[rollout.engine].live:
        yield (
            r"grpo\.(sampler_correction|correction_cap|correction_floor)",
            "set rollout.engine to vllm, which samples with its own copy of the weights",
        )
    for name, keys in (
        ("overlong", "overlong_cache_tokens"),
        ("repetition", "repetition_ngram"),
        ("cosine_length", "cosine_correct|cosine_wrong"),
    ):
        if name not in reward.extra:
            yield rf"reward\.({keys})", f"name `{name}` in reward.extra"
    if not params.evaluate.num_samples:
        yield r"evaluate\.(temperature|top_p)", "set evaluate.num_samples above 0"
    for section, engine in (("rollout", rollout.engine), ("validation", validation.engine)):
        if engine != "vllm":
            yield rf"{section}\.gpu_memory_utilization", f"set {section}.engine to vllm"
    if not model.lora.rank:
        yield r"model\.lora\.(?!rank).*", "set model.lora.rank above 0"
    if model.name:
        yield r"model\.tiny\..*", "set model.name to ''"
    if not any(isinstance(source, GeneratorSource) for source in params.prepare.every_source):
        yield r"prepare\.synthetic\..*", "name a `generator:` among the sources"
    if not prepare.grpo.difficulty.file:
        yield r"prepare\.grpo\.difficulty\.(?!file).*", "set prepare.grpo.difficulty.file"
    if not prepare.validation_share:
        yield r"prepare\.validation_from", "set prepare.validation_share above 0"
    # `dpo.init` has one entry or none: DPO counts only if it runs.
    phases = [params.sft, grpo, *(params.dpo for _ in params.dpo.init)]
    # A skipped phase has no validation.
    if not any(phase.eval_steps for phase in phases if not phase.skipped):
        yield r"validation\..*", "set sft.eval_steps or grpo.eval_steps above 0"
    if params.sft.adapter:
        yield r"sft\.(?!adapter).*", "set sft.adapter to ''"
    elif params.sft.skipped:
        yield r"sft\.(?!num_epochs).*", "set sft.num_epochs above 0"
    if grpo.skipped:
        yield r"grpo\.(?!max_steps).*", "set grpo.max_steps above 0"
        if not params.dpo.init:
            yield r"rollout\.(temperature|top_p|top_k|min_p|engine)", "set grpo.max_steps above 0"
    if not params.dpo.init:
        yield r"dpo\.(?!init).*", "name a checkpoint in dpo.init"
