"""Group Relative Policy Optimization (arXiv:2402.03300) and its kin, from params to a trainer."""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, Trainer, TrainingArguments

from lib.artifacts.problems import read_problems
from lib.core.errors import UserError
from lib.engines.base import Sampling, check_engine, encode, open_engine
from lib.engines.policy import load_tokenizer, rope_switch, trainable_policy
from lib.engines.registry import ENGINES
from lib.engines.unsloth import shares_weights
from lib.params.schema import Params
from lib.rewards.functions import Grading
from lib.training.grpo.policy_gradient import PolicyGradientTrainer
from lib.training.phase.launch import num_processes
from lib.training.phase.ranks import check_grpo_can_shard
from lib.training.phase.rollout_log import RolloutLog
from lib.training.phase.setup import Setup, prepare_trainer, prompt_settings, shared_arguments
from lib.training.phase.tracking import ProgressLines
from lib.training.phase.warning_signs import Limits, WarningSigns

SHOWN = ("reward", "reward_std", "frac_reward_zero_std", "completions/mean_length", "loss")


def grpo_setup(params: Params, *, problems: Path, init: Path, base: Path, scratch: Path) -> Setup:
    """The GRPO of `params` on a file of problems, ready to start from the checkpoint `init`: with
    `PolicyGradientTrainer`, or TRL's `GRPOTrainer` where `grpo.trainer` says so.

    Args:
        base: the weights below an adapter, with the system prompt beside them.
        scratch: folder for what the trainer writes on its own.

    Raises:
        UserError: fewer problems than one step takes, processes that cannot share a step, rollouts
            beyond a switch of the model's positions, or an engine that is not there.
    """
    grpo, rollout, reward, model = params.grpo, params.rollout, params.reward, params.model
    check_engine(rollout.engine, init, base=base)
    read = list(read_problems(problems))
    if len(read) < grpo.prompts_per_step:
        raise UserError(
            f"grpo.prompts_per_step={grpo.prompts_per_step}: there are only {len(read)} GRPO "
            "problems; lower it, or let `prepare.grpo` keep more"
        )
    # TRL's trainer generates by itself, with weights of its own where vLLM does.
    shared = grpo.trainer != "trl" and shares_weights(model, engine=rollout.engine)
    policy = trainable_policy(
        init,
        base=base,
        settings=model,
        seed=params.seed,
        memory_share=rollout.gpu_memory_utilization if shared else 0.0,
    )
    if getattr(policy.config, "output_router_logits", False):
        raise UserError(
            "model.name: GRPO has no router loss for a mixture of experts; set "
            "output_router_logits to false in the model's config"
        )
    switch = rope_switch(policy.config)
    if switch and model.max_seq_length > switch:
        raise UserError(
            f"model.max_seq_length={model.max_seq_length}: beyond {switch} tokens this model "
            "(rope_type longrope) computes all positions otherwise, so that a completion is not "
            f"scored as it was sampled; set it to {switch} or less"
        )
    switch_off_noise(policy)
    tokenizer, (prompt_format, system) = load_tokenizer(init), prompt_settings(params, base)
    prompts = [prompt_format.prompt(problem.problem, system=system) for problem in read]
    longest = max(map(len, encode(tokenizer, prompts)))
    # One token is left over, as in S0's source, whose max_prompt_length is one more than that.
    room = max(1, model.max_seq_length - longest - 1)
    rollout = rollout.model_copy(update={"max_new_tokens": min(room, rollout.max_new_tokens)})
    grading = Grading(
        reward.names,
        reward.weights,
        prompt_format=prompt_format,
        **reward.settings(max_completion_tokens=rollout.max_new_tokens),
    )
    arguments = grpo_arguments(params, scratch=scratch)
    common = {
        "model": policy,
        "processing_class": tokenizer,
        "callbacks": [
            ProgressLines("grpo", SHOWN),
            WarningSigns(
                "grpo",
                Limits.of(
                    reward, max_new_tokens=rollout.max_new_tokens, dtype=model.inference_dtype
                ),
            ),
        ],
    }
    rows = [
        {
            "prompt": prompt,
            "problem": problem.problem,
            "reference": problem.reference,
            # What reward functions written for the one-call example of TRL and its kin ask for.
            "reference_answer": problem.reference,
            "reference_solution": problem.solution,
            "tags": list(problem.tags),
        }
        for problem, prompt in zip(read, prompts, strict=True)
    ]
    trainer: Trainer
    if grpo.trainer == "trl":
        # The only import of TRL's that looks for vLLM.
        from lib.training.grpo.trl import build_trl

        trainer = build_trl(
            rows, grading=grading, arguments=arguments, grpo=grpo, rollout=rollout,
            settings=model, **common,
        )  # fmt: skip
    else:
        trainer = PolicyGradientTrainer(
            args=TrainingArguments(**arguments),
            problems=rows,
            grading=grading,
            grpo=grpo,
            sampling=Sampling(
                **rollout.decoding,
                num_completions=grpo.group_size,
                stop_strings=prompt_format.stop_strings,
                seed=params.seed,
            ),
            **common,
        )
    prepare_trainer(trainer, grpo)
    setup = Setup(trainer=trainer, problems=read, rewards=trainer.reward_funcs)
    if not isinstance(trainer, PolicyGradientTrainer):
        return setup
    live = ENGINES[rollout.engine].live
    check_grpo_can_shard(trainer, rollout.engine, live=live)
    engine = open_engine(
        rollout.engine,
        init,
        base=base,
        **model.loading,
        batch_size=grpo.prompts_per_step * grpo.group_size // num_processes(),
        policy=trainer.model,
        memory_share=rollout.gpu_memory_utilization,
        device=rollout.device,
    )
    trainer.roll_out_with(engine, live=live)
    if grpo.log_problems:
        trainer.add_callback(RolloutLog(trainer, grpo=grpo, max_new_tokens=rollout.max_new_tokens))
    return setup


def grpo_arguments(params: Params, *, scratch: Path) -> dict[str, Any]:
    """Keyword arguments of `transformers.TrainingArguments`.

    Raises:
        UserError: the processes of this run cannot share a step in whole groups.
    """
    ranks, grpo = num_processes(), params.grpo
    if grpo.prompts_per_step % ranks:
        raise UserError(
            f"grpo.prompts_per_step={grpo.prompts_per_step}: {ranks} processes cannot share it in "
            f"whole groups; use a multiple of {ranks}"
        )
    return {
        **shared_arguments(params, grpo, batch=grpo.batch_size, scratch=scratch),
        "max_steps": grpo.max_steps,
        # Problems are chosen by the step, so that a resumed run has none to skip.
        "ignore_data_skip": True,
    }


def switch_off_noise(policy: torch.nn.Module) -> None:
    """Dropout, skipped layers and a router's jitter: the policy that is scored is the one that
    sampled.

    Some models (OPT, Starcoder2) call `dropout` as a function, with a number that a module holds;
    others (Falcon, Persimmon) with one of their config.
    """
    for module in policy.modules():
        config = getattr(module, "config", None)
        for owner in (module, config) if isinstance(config, PreTrainedConfig) else (module,):
            for name, value in vars(owner).items():
                noise = isinstance(owner, torch.nn.Dropout) or "drop" in name or "jitter" in name
                if noise and isinstance(value, float):
                    setattr(owner, name, 0.0)
