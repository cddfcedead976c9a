"""Find changed params that have no effect given the others.

With one optimiser step per batch of rollouts (`grpo.num_iterations: 1`) the updated policy is the
sampling policy, so that the probability ratio is 1 at every gradient. Clipping, bounds and averages
of the ratio then change no bit, and losses that differ only in them have one gradient.
"""

import re
from collections.abc import Iterator

from lib.engines.registry import ENGINES
from lib.objectives import LOSSES
from lib.params import Params, preset_names, preset_params
from lib.params.data import GeneratorSource
from lib.params.load import BASE
from lib.planning.inputs import sources_of

OFF_POLICY = "set grpo.num_iterations to 2 or more: with 1, the probability ratio is 1"


def idle_params(params: Params) -> Iterator[str]:
    """Return a line for each param that differs from its preset without effect, with the remedy."""
    rules = [(re.compile(pattern), remedy) for pattern, remedy in _rules(params)]
    values = params.flat()
    # A wider pattern comes later and replaces the remedy: its condition has to change first.
    remedies = {
        key: remedy for key in values for pattern, remedy in rules if pattern.fullmatch(key)
    }
    usual = preset_params(BASE).flat()
    if any(values[key] != usual[key] for key in remedies):
        # params.yaml does not name its preset: take the one with the fewest differing values.
        presets = (preset_params(name).flat() for name in preset_names())
        usual = min(presets, key=lambda preset: sum(preset[key] != values[key] for key in values))
    for key, remedy in remedies.items():
        both = values[key], usual[key]
        # A changed loss is idle only if its average equals the one of the preset.
        if both[0] != both[1] and (key != "grpo.loss" or have_one_gradient(*both)):
            yield f"{key}={values[key]} has no effect (preset: {usual[key]}); {remedy}"


def have_one_gradient(loss: str, other: str) -> bool:
    """Return True if two losses differ only where the ratio is not 1."""
    # None for a plugin's loss: nothing is known of its gradient, so that it is never idle.
    facts = LOSSES.get(loss), LOSSES.get(other)
    return bool(facts[0] and facts[1] and facts[0].average == facts[1].average)


def _rules(params: Params) -> Iterator[tuple[str, str]]:
    """Yield patterns of dotted keys without effect, wider patterns last, each with its remedy."""
    model, reward, grpo = params.model, params.reward, params.grpo
    rollout, validation, prepare = params.rollout, params.validation, params.prepare
    if grpo.num_iterations * grpo.updates_per_rollout == 1:
        yield r"grpo\.(epsilon|epsilon_high|delta)", OFF_POLICY
        yield r"grpo\.loss", f"{OFF_POLICY}, and both have one gradient"
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
    if not any(isinstance(source, GeneratorSource) for source in sources_of(params)):
        yield r"prepare\.synthetic\..*", "name a `generator:` among the sources"
    if not prepare.grpo.difficulty.file:
        yield r"prepare\.grpo\.difficulty\.(?!file).*", "set prepare.grpo.difficulty.file"
    if not prepare.validation_share:
        yield r"prepare\.validation_from", "set prepare.validation_share above 0"
    # `dpo.init` has one entry or none: DPO counts only if it runs.
    phases = [params.sft, grpo, *(params.dpo for _ in params.dpo.init)]
    # A skipped phase validates nothing.
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
