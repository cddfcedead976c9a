"""Rules between the sections of params.yaml, by kind, each in one place.

    conflicts      contradictions, refused with an error
    warnings       valid settings that are probably a mistake; `doubts` has more, of the plan

A rule within one section is one of its `contradictions`, beside its fields. `lib.planning.inputs`
checks files, `lib.planning.doctor` the machine, the training phases lengths in tokens.
"""

from collections.abc import Iterator

from lib.core.errors import UserError
from lib.core.plugins import is_plugin, label
from lib.params.engines import ENGINES
from lib.params.model import Decoding, lost_updates
from lib.params.schema import Params
from lib.params.section import HELD_BACK_SET, suggest
from lib.params.training import Optimisation, RolloutSampling, Validation
from lib.prompts import prompt_format
from lib.rewards.functions import load_reward, rewards_of
from lib.rewards.grading import Grading

ACCEPTABLE_LOSS = 0.05
"""Acceptable share of bfloat16 weights without an update. Learning rates of 2e-4 and more have a
smaller share."""

USUAL_RATE, FAR_RATE = 1e-6, 4.0
"""GRPO's learning rate for all weights in arXiv:2512.16649, verl and open-instruct; the factor
beyond which a rate is doubted."""


def conflicts(params: Params) -> Iterator[str]:
    """Yield a line for each contradiction between sections."""
    rules = (
        _unknown_sets,
        _unvalidated_best,
        _long_completions,
        _reward_faults,
        _trl_faults,
        _unsloth_faults,
        _other_bits,
        _checkpoint_faults,
    )
    for rule in rules:
        yield from rule(params)
    is_own = params.prompt.layout == "own"
    if is_own and not params.model.name:
        yield "prompt.layout=own: a new tiny model has no chat template; use plain"
    if params.prompt.template_arguments and not is_own:
        yield "prompt.template_arguments: only the model's own template has some: layout own"
    if params.dpo.init and params.prompt.tool:
        yield "dpo.init: DPO would learn the tool's results as well; set prompt.tool to ''"


def _unknown_sets(params: Params) -> Iterator[str]:
    # Users choose the names of benchmarks, in the section `prepare`. Validation can also use the
    # set of problems that are held back from training.
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


def _unvalidated_best(params: Params) -> Iterator[str]:
    """Yield a message for each phase with `select: best` but no validation on the held-back set.

    Such a phase hands on its best checkpoint. Selection on a benchmark would bias the benchmark's
    numbers in the report upwards.
    """
    has_held_back = HELD_BACK_SET in params.validation.sets
    for name in params.starts:
        phase: Optimisation = getattr(params, name)
        validated = phase.eval_steps and has_held_back
        if phase.select == "best" and not phase.skipped and not validated:
            yield (
                f"{name}.select: best is measured on the held-back set; add "
                f"`{HELD_BACK_SET}` to validation.sets, and set {name}.eval_steps above 0"
            )


def _long_completions(params: Params) -> Iterator[str]:
    longest = params.model.max_seq_length
    sections: dict[str, RolloutSampling | Decoding | Validation] = {
        "rollout": params.rollout,
        "evaluate": params.evaluate,
        "validation": params.validation,
        **{f"evaluate.overrides.{each.benchmark}": each for each in params.evaluate.overrides},
    }
    for key, section in sections.items():
        if section.max_new_tokens >= longest:
            yield (
                f"{key}.max_new_tokens: {section.max_new_tokens} is not below "
                f"model.max_seq_length={longest}, which holds prompt and completion together"
            )


def _reward_faults(params: Params) -> Iterator[str]:
    """Yield messages on wrong numbers of weights, and on rewards without their settings or tags.

    A reward that counts tags needs a prompt format with these tags.
    """
    reward, validation = params.reward, params.validation
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
    grpo = params.grpo
    without_rewards = {
        "without grpo.teacher": not grpo.teacher,
        f"with reward.extra: {list(reward.extra)}": bool(reward.extra),
        f"with grpo.curriculum: {grpo.curriculum}": grpo.curriculum != "none",
        f"with grpo.dynamic_sampling: {grpo.dynamic_sampling}": grpo.dynamic_sampling > 0,
        f"with grpo.advantage: {grpo.advantage}": is_plugin(grpo.advantage),
    }
    if not reward.weights and (
        reasons := [each for each, is_so in without_rewards.items() if is_so]
    ):
        yield (
            f"reward.weights: [] {' and '.join(reasons)}: no completion of training is then judged;"
            f" give each of {', '.join(rewards_of(reward.stack))} a weight"
        )
    # Validation passes no settings of single rewards: SFT would depend on the section `reward`.
    if any({*load_reward(name).needs} - {"max_completion_tokens"} for name in validation_rewards):
        yield (
            f"validation.stack: `{validation.stack}` has rewards with settings of their own, which "
            "only training has; use another stack"
        )
    # Without plugins, since stages before GRPO do not depend on their files; `check` tries them.
    registered = [name for name in (*training_rewards, *validation_rewards) if not is_plugin(name)]
    settings = reward.settings(max_completion_tokens=params.rollout.max_new_tokens)
    # `Grading` looks up each reward, and raises if one reads tags that the format does not have.
    try:
        Grading(registered, prompt_format=prompt_format(**params.prompt.rendering), **settings)
    except UserError as error:
        yield error.message


def _trl_faults(params: Params) -> Iterator[str]:
    """Yield a message with all settings that TRL 1.14's `GRPOTrainer` does not support, if any.

    It would ignore some of them silently. Another message is on `updates_per_rollout` above 1,
    which reckon's own trainer does not support.
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
        has_stop_strings = bool(prompt_format(**params.prompt.rendering).stop_strings)
    except UserError:
        has_stop_strings = False
    unsupported = {
        # TRL's `scale_rewards` is group, batch or none, and none is our `mean`.
        f"grpo.advantage: {grpo.advantage}": grpo.advantage not in ("group", "batch", "mean"),
        f"grpo.loss: {grpo.loss}": is_plugin(grpo.loss) or not grpo.loss_facts.in_trl,
        f"grpo.average: {grpo.average}": grpo.average != "loss",
        f"grpo.divide_by: {grpo.divide_by}": grpo.divide_by != "all",
        f"grpo.teacher: {grpo.teacher}": bool(grpo.teacher),
        f"prompt.tool: {params.prompt.tool}": bool(params.prompt.tool),
        f"grpo.curriculum: {grpo.curriculum}": grpo.curriculum != "none",
        f"grpo.dynamic_sampling: {grpo.dynamic_sampling}": grpo.dynamic_sampling > 0,
        "rollout.engine: vllm-server": rollout.engine == "vllm-server",
        # A process has room for one vLLM, and TRL gives no access to its own.
        "validation.engine: vllm beside its own engine": (
            {rollout.engine, validation.engine} == {"vllm"} and grpo.eval_steps > 0
        ),
        # TRL may not stop at them, and counts a completion without EOS as truncated.
        f"prompt.format: {params.prompt.format}, whose stop strings end a completion": (
            has_stop_strings
        ),
        # TRL loads the reference policy from files, which lack the new tokens' rows.
        "grpo.beta above 0 on full weights with model.tag_tokens": (
            grpo.beta > 0 and not model.lora.rank and model.tag_tokens
        ),
    }
    settings = [setting for setting, is_set in unsupported.items() if is_set]
    if settings:
        yield f"grpo.trainer=trl cannot do: {'; '.join(settings)}. Use grpo.trainer: reckon"


def _on_policy_weights(params: Params) -> list[str]:
    """Return the keys of the engines that share the policy's weights, like ["rollout.engine"].

    Only a vLLM on the backend unsloth shares them; [] if there is none.
    """
    if params.model.backend != "unsloth":
        return []
    engines = {
        "rollout.engine": params.rollout.engine,
        "validation.engine": params.validation.engine,
    }
    # `below_unsloth` is True for vLLM only: Unsloth's `fast_inference` keeps one copy of the
    # weights for training and vLLM.
    return [key for key, name in engines.items() if ENGINES[name].below_unsloth]


def _unsloth_faults(params: Params) -> Iterator[str]:
    """Yield a message for each setting that Unsloth 2026.10.7 refuses or replaces.

    One more, for any backend, is on a cast output layer with an adapter.
    """
    model, shared = params.model, _on_policy_weights(params)
    if model.backend == "unsloth" and params.grpo.teacher and params.grpo.teacher_kl == "full":
        yield "grpo.teacher_kl=full: not with model.backend=unsloth; use sampled"
    casts = params.grpo.cast_lm_head_to_fp32
    if casts and "lm_head" in model.lora.target_modules:
        yield (
            "grpo.cast_lm_head_to_fp32: an output layer with an adapter keeps its type; take "
            "lm_head out of model.lora.target_modules, or set it to false"
        )
    if model.backend != "unsloth":
        return
    # Message → truthy if it applies. Two messages are about an engine that shares the weights, and
    # do not apply if `shared` is empty. The first begins with its key, the first of `shared`.
    remedy = f"or {' and '.join(shared)} to transformers"
    refused = {
        "model.tag_tokens: backend unsloth cannot add tokens; set it to false": model.tag_tokens,
        f"model.attention={model.attention}: backend unsloth chooses its own; leave it at sdpa": (
            model.attention != "sdpa"
        ),
        f"{''.join(shared[:1])}=vllm: backend unsloth shares its weights with vLLM only under "
        f"LoRA; set model.lora.rank, {remedy}": shared and not model.lora.rank,
        f"model.dtype={model.dtype}: backend unsloth shares only weights of 16 bits with vLLM; "
        f"set it to bfloat16, {remedy}": shared and model.dtype != "bfloat16",
        "grpo.cast_lm_head_to_fp32: backend unsloth computes logits with kernels of its own; set "
        "it to false, or model.backend to transformers": casts,
    }
    yield from (message for message, applies in refused.items() if applies)


def _other_bits(params: Params) -> Iterator[str]:
    """Yield a message for each setting that `model.deterministic` does not cover."""
    if not params.model.deterministic:
        return
    if params.model.backend == "unsloth":
        yield "model.deterministic: backend unsloth has kernels of its own; use transformers"
    for section in ("rollout", "validation", "evaluate"):
        if getattr(params, section).engine == "vllm-server":
            yield f"model.deterministic: {section}.engine=vllm-server has its own kernels; use vllm"


def _checkpoint_faults(params: Params) -> Iterator[str]:
    evaluated = params.evaluate.checkpoints
    if not params.dpo.init and "dpo" in evaluated:
        yield (
            "evaluate.checkpoints: `dpo` is listed, but dpo.init is [], so that no stage makes "
            "it; set dpo.init to [sft] or [grpo]"
        )
    for init in params.dpo.init:
        # The effect of DPO is the difference of two checkpoints, so both must be evaluated.
        if missing := [name for name in ("dpo", init) if name not in evaluated]:
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
    if params.export.checkpoint not in evaluated:
        yield (
            f"export.checkpoint: `{params.export.checkpoint}` is not in evaluate.checkpoints "
            f"({', '.join(evaluated)}); the model card needs its numbers"
        )


def doubts(params: Params) -> list[str]:
    """Return the warnings, and one on a learning rate of GRPO far from published recipes'."""
    grpo, usual = params.grpo, USUAL_RATE * (10 if params.model.lora.rank else 1)
    share = grpo.learning_rate / usual
    if "/" not in params.model.name or grpo.skipped or 1 / FAR_RATE <= share <= FAR_RATE:
        return warnings(params)
    return [
        *warnings(params),
        f"grpo.learning_rate: {grpo.learning_rate:g} is {share:.2g} times what published recipes "
        f"take ({usual:g}; ten times more for LoRA than for all weights)",
    ]


def warnings(params: Params) -> list[str]:
    """Return a message for each phase whose learning rate is too small for bfloat16 weights.

    Rounding to bfloat16 undoes the updates of more than `ACCEPTABLE_LOSS` of the weights.
    """
    if params.model.dtype != "bfloat16" or params.model.lora.rank:
        return []
    messages = []
    for name in params.starts:
        phase: Optimisation = getattr(params, name)
        lost = lost_updates(phase.learning_rate)
        if not phase.skipped and lost > ACCEPTABLE_LOSS:
            messages.append(
                f"{name}.learning_rate: {phase.learning_rate:g} on bfloat16 weights leaves "
                f"{lost:.0%} of them unchanged, however many steps agree; set model.dtype: "
                "float32 with model.mixed_precision: bf16"
            )
    return messages
