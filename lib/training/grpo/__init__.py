"""Build a GRPO trainer (arXiv:2402.03300) from params."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, Trainer, TrainingArguments

from lib.artifacts.problems import Problem, read_problems
from lib.core.errors import UserError
from lib.engines.base import Sampling, check_engine, encode, open_engine, room_for_completions
from lib.models.load import rope_switch, trainable_policy
from lib.models.pretrained import load_tokenizer
from lib.models.unsloth import shares_weights
from lib.params.engines import ENGINES
from lib.params.schema import Params
from lib.prompts.formats import conversation
from lib.rewards.grading import Grading
from lib.training.grpo.policy_gradient import PolicyGradientTrainer
from lib.training.grpo.teacher import load_teacher
from lib.training.phase.console import ProgressLines, say
from lib.training.phase.launch import check_whole_groups, num_processes
from lib.training.phase.rollout_log import RolloutLog
from lib.training.phase.setup import Setup, prompt_settings, set_optimizer, shared_arguments
from lib.training.phase.warning_signs import Limits, WarningSigns

LINE_COLUMNS = ("reward", "reward_std", "frac_reward_zero_std", "completions/mean_length", "loss")


def grpo_setup(params: Params, *, problems: Path, init: Path, base: Path, scratch: Path) -> Setup:
    """Build the GRPO trainer and its engine, to start from the checkpoint `init`.

    The trainer is `PolicyGradientTrainer`, or TRL's `GRPOTrainer` for `grpo.trainer: trl`.

    Args:
        base: the model that an adapter is trained on, with the system prompt beside it.
        scratch: the trainer's output folder.

    Raises:
        UserError: there are fewer problems than one step takes; a prompt leaves no token for a
            completion; the processes cannot share a step; `load_grpo_policy` refuses the model; or
            the engine is missing.
    """
    # Checked before the policy is loaded, which can take minutes.
    check_engine(params.rollout.engine, init, base=base)
    all_problems = list(read_problems(problems))
    if len(all_problems) < params.grpo.prompts_per_step:
        raise UserError(
            f"grpo.prompts_per_step={params.grpo.prompts_per_step}: there are only "
            f"{len(all_problems)} GRPO problems; lower it, or let `prepare.grpo` keep more"
        )
    policy, tokenizer = load_grpo_policy(params, init=init, base=base), load_tokenizer(init)
    prompt_format, system = prompt_settings(params, base)
    rows = problem_rows(all_problems, system=system)
    params = fit_completions(params, tokenizer, rows)
    length = params.rollout.max_new_tokens
    grading = Grading(
        params.reward.names,
        params.reward.weights,
        prompt_format=prompt_format,
        **params.reward.settings(max_completion_tokens=length),
    )
    limits = Limits.from_reward(
        params.reward,
        max_new_tokens=length,
        dtype=params.model.inference_dtype,
        advantage=params.grpo.advantage,
    )
    parts = {
        "grading": grading,
        "arguments": grpo_arguments(params, scratch=scratch),
        "model": policy,
        "processing_class": tokenizer,
        "callbacks": [ProgressLines("grpo", LINE_COLUMNS), WarningSigns("grpo", limits)],
    }
    if params.grpo.trainer == "trl":
        # Imported only here, because TRL's GRPOTrainer imports vLLM if it is installed.
        from lib.training.grpo.trl import build_trl

        trainer: Trainer = build_trl(rows, params, **parts)
    else:
        stop_strings = prompt_format.stop_strings
        trainer = build_own(rows, params, init, base, stop_strings=stop_strings, **parts)
    set_optimizer(trainer, params.grpo)
    return Setup(trainer, all_problems, grading.rewards, params.model_dump())


def problem_rows(problems: Sequence[Problem], *, system: str) -> list[dict[str, Any]]:
    """Return the problems with their prompts, and the columns for reward functions."""
    return [
        {
            "prompt": conversation(problem.problem, system=system),
            "problem": problem.problem,
            "reference": problem.reference,
            # The reference again, under the name in TRL's examples of reward functions.
            "reference_answer": problem.reference,
            "reference_solution": problem.solution,
            "tags": list(problem.tags),
        }
        for problem in problems
    ]


def fit_completions(params: Params, tokenizer: Any, rows: Sequence[Mapping[str, Any]]) -> Params:
    """Return params with completions as long as the longest prompt leaves room for."""
    prompts = encode(tokenizer, [row["prompt"] for row in rows])
    room = room_for_completions(prompts, max_seq_length=params.model.max_seq_length)
    if room >= params.rollout.max_new_tokens:
        return params
    say(
        f"grpo completions get the {room} tokens that the longest prompt leaves in "
        f"model.max_seq_length={params.model.max_seq_length}"
    )
    rollout = params.rollout.model_copy(update={"max_new_tokens": room})
    return params.model_copy(update={"rollout": rollout})


def build_own(
    rows: Sequence[Mapping[str, Any]],
    params: Params,
    init: Path,
    base: Path,
    *,
    arguments: Mapping[str, Any],
    stop_strings: tuple[str, ...],
    **kwargs: Any,
) -> PolicyGradientTrainer:
    """Build `PolicyGradientTrainer` with its engine and rollout log, ready to start.

    Args:
        rows: from `problem_rows`.
        arguments: keyword arguments of `transformers.TrainingArguments`.
        kwargs: further arguments of the trainer.
    """
    grpo, rollout = params.grpo, params.rollout
    if grpo.teacher:
        kwargs["teacher"] = load_teacher(
            grpo.teacher, kwargs["processing_class"], base=base, settings=params.model
        )
    trainer = PolicyGradientTrainer(
        args=TrainingArguments(**arguments),
        problems=rows,
        grpo=grpo,
        sampling=Sampling(
            **rollout.decoding,
            num_completions=grpo.group_size,
            stop_strings=stop_strings,
            tool=params.prompt.tool,
            seed=params.seed,
        ),
        **kwargs,
    )
    engine = open_engine(
        rollout.engine,
        init,
        base=base,
        **params.model.loading,
        # All completions of this process at once.
        batch_size=grpo.prompts_per_step * grpo.group_size // num_processes(),
        policy=trainer.model,
        memory_share=rollout.gpu_memory_utilization,
        device=rollout.device,
    )
    # A live engine generates with the policy itself. Other engines have kernels of their own, and a
    # copy of the weights (Unsloth's vLLM has the policy's).
    trainer.roll_out_with(engine, live=ENGINES[rollout.engine].live)
    if grpo.log_problems:
        log = RolloutLog(trainer, grpo=grpo, max_new_tokens=rollout.max_new_tokens)
        trainer.add_callback(log)
    return trainer


def load_grpo_policy(params: Params, *, init: Path, base: Path) -> Any:
    """Load the checkpoint `init` for training, without dropout.

    Raises:
        UserError: the model has a router loss, or `model.max_seq_length` exceeds the length at
            which a longrope model switches its RoPE factors.
    """
    model, rollout = params.model, params.rollout
    # True if rollouts come from a vLLM that computes with the policy's own weights (only on the
    # backend unsloth). TRL's trainer starts its own vLLM, with a copy of the weights.
    shared = params.grpo.trainer != "trl" and shares_weights(model, engine=rollout.engine)
    policy = trainable_policy(
        init,
        base=base,
        settings=model,
        seed=params.seed,
        # Unsloth loads such a vLLM together with the policy, on this share of the GPU; 0 for none.
        memory_share=rollout.gpu_memory_utilization if shared else 0.0,
    )
    if getattr(policy.config, "output_router_logits", False):
        raise UserError(
            "model.name: GRPO has no router loss for a mixture of experts; set "
            "output_router_logits to false in the model's config"
        )
    # In tokens; None for a model of another RoPE type than longrope.
    switch = rope_switch(policy.config)
    if switch and model.max_seq_length > switch:
        raise UserError(
            f"model.max_seq_length={model.max_seq_length}: beyond {switch} tokens this model "
            "(rope_type longrope) computes all positions otherwise, so that a completion is not "
            f"scored as it was sampled; set it to {switch} or less"
        )
    # Ratios compare the policy's probabilities over passes: dropout would make them noise.
    switch_off_noise(policy)
    return policy


def grpo_arguments(params: Params, *, scratch: Path) -> dict[str, Any]:
    """Return GRPO's keyword arguments of `transformers.TrainingArguments`.

    Args:
        scratch: the trainer's output folder.

    Raises:
        UserError: the processes of this run cannot share a step in whole groups.
    """
    grpo = params.grpo
    check_whole_groups(grpo.prompts_per_step, world_size=num_processes())
    return {
        **shared_arguments(params, grpo, batch=grpo.batch_size, scratch=scratch),
        "max_steps": grpo.max_steps,
        # The trainer derives the problems from the step's number, so that a resumed run has no
        # batches to skip.
        "ignore_data_skip": True,
    }


def switch_off_noise(policy: torch.nn.Module) -> None:
    """Set the rates of dropout, layer drop and router jitter to 0: scoring must repeat sampling.

    Some models (OPT, Starcoder2) call `dropout` as a function with a rate from a module's
    attribute, others (Falcon, Persimmon) with a rate from their config. Modules get a copy of the
    config to change, since the policy's own config is saved.
    """
    # Config id → its copy: modules that shared a config then share it. A config without noise
    # stays the policy's own, in which an engine can set the attention.
    copies: dict[int, PreTrainedConfig] = {}
    for module in policy.modules():
        owners: list[Any] = [module]
        config = getattr(module, "config", None)
        if isinstance(config, PreTrainedConfig) and module is not policy and _rates(config):
            module.config = copies.setdefault(id(config), copy.copy(config))
            owners.append(module.config)
        for owner in owners:
            for name in _rates(owner):
                setattr(owner, name, 0.0)


def _rates(owner: Any) -> list[str]:
    """Name an object's rates above 0, such as attention_dropout, layerdrop, router_jitter_noise."""
    # An nn.Dropout has only one float, its rate `p`.
    is_dropout = isinstance(owner, torch.nn.Dropout)
    return [
        name
        for name, value in vars(owner).items()
        if isinstance(value, float) and value and (is_dropout or "drop" in name or "jitter" in name)
    ]
