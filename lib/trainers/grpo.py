"""Group Relative Policy Optimization (arXiv:2402.03300) and its kin, from params to a trainer.

P problems a step, G completions each; TRL's batch fields are derived from P, G and the micro-batch.
"""

from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset
from transformers import PrinterCallback
from trl import GRPOConfig

from lib.engines.base import Sampling
from lib.engines.open import check_engine, open_engine
from lib.engines.policy import load_tokenizer, trainable_policy
from lib.engines.unsloth import shares_weights
from lib.errors import UserError
from lib.evaluation.rewarding import logging_accuracy, rewards_of
from lib.params.model import Model
from lib.params.schema import Params
from lib.params.training import Grpo, Reward, Rollout
from lib.problems.schema import Problem, read_problems
from lib.prompts import PromptFormat
from lib.trainers.arguments import choose_optimizer, shared_arguments
from lib.trainers.batches import micro_batches
from lib.trainers.launch import num_processes
from lib.trainers.policy_gradient import Objective, PolicyGradientTrainer
from lib.trainers.ranks import check_sampler_gets_weights
from lib.trainers.setup import Setup, asked_with
from lib.trainers.tracking import ProgressLines
from lib.trainers.warning_signs import ANSWER_ACCURACY, Limits, WarningSigns

SHOWN = ("reward", "reward_std", "frac_reward_zero_std", "completions/mean_length", "loss")
SCALES = {"group": "group", "batch": "batch"}
"""reckon's `grpo.advantage` to TRL's `scale_rewards`; its "none" is our `mean`, or not used."""
LIVE = ("transformers",)
"""Engines that generate with the policy's own weights."""


def build_grpo(
    problems: Sequence[Problem],
    *,
    init: Path,
    base: Path,
    prompt_format: PromptFormat,
    system: str,
    grpo: Grpo,
    rollout: Rollout,
    reward: Reward,
    model: Model,
    seed: int,
    scratch: Path,
) -> PolicyGradientTrainer:
    """A trainer that is ready to start from the checkpoint `init`.

    Raises:
        UserError: fewer problems than one step takes (TRL would train on none and say nothing),
            processes that cannot share a step, or an engine that is not there.
    """
    check_engine(rollout.engine, init, base=base)
    if len(problems) < grpo.prompts_per_step:
        raise UserError(
            f"grpo.prompts_per_step={grpo.prompts_per_step}: there are only {len(problems)} GRPO "
            "problems; lower it, or let `prepare.grpo` keep more"
        )
    shared = shares_weights(model, engine=rollout.engine)
    policy = trainable_policy(
        init,
        base=base,
        settings=model,
        seed=seed,
        memory_share=rollout.gpu_memory_utilization if shared else 0.0,
    )
    first, *rewards = rewards_of(
        reward, prompt_format=prompt_format, max_completion_tokens=rollout.max_new_tokens
    )
    trainer = PolicyGradientTrainer(
        model=policy,
        args=grpo_arguments(
            grpo, rollout=rollout, reward=reward, model=model, seed=seed, scratch=scratch
        ),
        reward_funcs=[
            logging_accuracy(first, prompt_format=prompt_format, name=ANSWER_ACCURACY),
            *rewards,
        ],
        train_dataset=grpo_dataset(problems, prompt_format=prompt_format, system=system),
        processing_class=load_tokenizer(init),
        callbacks=[
            ProgressLines("grpo", SHOWN),
            WarningSigns("grpo", Limits.of(reward, max_new_tokens=rollout.max_new_tokens)),
        ],
        objective=Objective(
            advantage=grpo.advantage,
            reinforce=grpo.loss == "reinforce",
            mask_truncated=grpo.mask_truncated,
            dynamic_sampling=grpo.dynamic_sampling,
            max_logp_difference=rollout.max_logp_difference,
        ),
    )
    trainer.remove_callback(PrinterCallback)
    choose_optimizer(trainer, grpo.optimizer)
    live = rollout.engine in LIVE
    check_sampler_gets_weights(trainer, rollout.engine, live=live)
    engine = open_engine(
        rollout.engine,
        init,
        base=base,
        model=model,
        batch_size=grpo.prompts_per_step * grpo.group_size // num_processes(),
        policy=trainer.model,
        memory_share=rollout.gpu_memory_utilization,
    )
    trainer.roll_out_with(
        engine,
        rollout_sampling(rollout, grpo=grpo, prompt_format=prompt_format),
        live=live,
    )
    return trainer


def grpo_setup(params: Params, *, problems: Path, init: Path, base: Path, scratch: Path) -> Setup:
    """The GRPO of `params` on a file of problems, ready to start from the checkpoint `init`.

    Args:
        base: the weights below an adapter, with the system prompt beside them.
        scratch: folder for what the trainer writes on its own.
    """
    rows = list(read_problems(problems))
    trainer = build_grpo(
        rows,
        init=init,
        base=base,
        grpo=params.grpo,
        rollout=params.rollout,
        reward=params.reward,
        model=params.model,
        seed=params.seed,
        scratch=scratch,
        **asked_with(params, base),
    )
    return Setup(trainer=trainer, problems=rows, rewards=trainer.reward_funcs)


def rollout_sampling(rollout: Rollout, *, grpo: Grpo, prompt_format: PromptFormat) -> Sampling:
    """How completions are drawn in training."""
    return Sampling(
        num_completions=grpo.group_size,
        max_new_tokens=rollout.max_new_tokens,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p,
        stop_strings=prompt_format.stop_strings,
    )


def grpo_arguments(
    grpo: Grpo, *, rollout: Rollout, reward: Reward, model: Model, seed: int, scratch: Path
) -> GRPOConfig:
    """Params to TRL's arguments; 0 in params means TRL's None where TRL has one.

    Raises:
        UserError: the processes of this run cannot share a step in whole groups.
    """
    ranks = num_processes()
    if grpo.prompts_per_step % ranks:
        raise UserError(
            f"grpo.prompts_per_step={grpo.prompts_per_step}: {ranks} processes cannot share it in "
            f"whole groups; use a multiple of {ranks}"
        )
    completions = grpo.prompts_per_step * grpo.group_size
    return GRPOConfig(
        **shared_arguments(grpo, model=model, seed=seed, scratch=scratch),
        **micro_batches(completions, micro_batch=grpo.micro_batch_size, world_size=ranks),
        max_steps=grpo.max_steps,
        num_generations=grpo.group_size,
        num_iterations=grpo.num_iterations,
        shuffle_dataset=grpo.shuffle,
        # What `reinforce` is once the old policy is left out (`lib.trainers.policy_gradient`).
        loss_type="grpo" if grpo.loss == "reinforce" else grpo.loss,
        scale_rewards=SCALES.get(grpo.advantage, "none"),
        importance_sampling_level=grpo.importance_level,
        beta=grpo.beta,
        use_bias_correction_kl=grpo.kl_weighted,
        epsilon=grpo.epsilon,
        epsilon_high=grpo.epsilon_high or None,
        reward_weights=list(reward.weights),
        max_completion_length=rollout.max_new_tokens,
        temperature=rollout.temperature,
        disable_dropout=True,
    )


def grpo_dataset(
    problems: Sequence[Problem], *, prompt_format: PromptFormat, system: str
) -> Dataset:
    """Prompts as chat messages, and the column that the rewards read."""
    return Dataset.from_list(
        [
            {
                "prompt": prompt_format.prompt(problem.problem, system=system),
                "reference": problem.reference,
            }
            for problem in problems
        ]
    )
