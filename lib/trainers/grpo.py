"""Group Relative Policy Optimization (arXiv:2402.03300): TRL's `GRPOTrainer`, in reckon's terms.

P problems a step, G completions each; TRL's batch fields are derived from P, G and the micro-batch.
"""

from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from lib.engines.policy import load_tokenizer, trainable_policy
from lib.errors import UserError
from lib.evaluation.rewarding import chosen_rewards
from lib.params.schema import Grpo, Model, Reward, Rollout
from lib.problems.schema import Problem
from lib.prompts import PromptFormat
from lib.trainers.arguments import micro_batches, shared_arguments
from lib.trainers.tracking import ProgressLines

SHOWN = ("reward", "reward_std", "frac_reward_zero_std", "completions/mean_length", "loss")
SCALES = {"group": "group", "batch": "batch", "mean": "none"}
"""reckon's `grpo.advantage` to TRL's `scale_rewards`."""


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
) -> GRPOTrainer:
    """A trainer that is ready to start from the checkpoint `init`.

    Raises:
        UserError: fewer problems than one step takes; TRL would train on none and say nothing.
    """
    if len(problems) < grpo.prompts_per_step:
        raise UserError(
            f"grpo.prompts_per_step={grpo.prompts_per_step}: there are only {len(problems)} GRPO "
            "problems; lower it, or let `prepare.grpo` keep more"
        )
    policy = trainable_policy(init, base=base, settings=model, seed=seed)
    trainer = GRPOTrainer(
        model=policy,
        args=grpo_arguments(
            grpo, rollout=rollout, reward=reward, model=model, seed=seed, scratch=scratch
        ),
        reward_funcs=chosen_rewards(
            reward, prompt_format=prompt_format, max_completion_tokens=rollout.max_new_tokens
        ),
        train_dataset=grpo_dataset(problems, prompt_format=prompt_format, system=system),
        processing_class=load_tokenizer(init),
        callbacks=[ProgressLines("grpo", SHOWN)],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def grpo_arguments(
    grpo: Grpo, *, rollout: Rollout, reward: Reward, model: Model, seed: int, scratch: Path
) -> GRPOConfig:
    """Params to TRL's arguments; 0 in params means TRL's None where TRL has one."""
    completions = grpo.prompts_per_step * grpo.group_size
    return GRPOConfig(
        **shared_arguments(grpo, model=model, seed=seed, scratch=scratch),
        **micro_batches(completions, micro_batch=grpo.micro_batch_size, world_size=1),
        max_steps=grpo.max_steps,
        num_generations=grpo.group_size,
        num_iterations=grpo.num_iterations,
        shuffle_dataset=grpo.shuffle,
        loss_type=grpo.loss,
        scale_rewards=SCALES[grpo.advantage],
        beta=grpo.beta,
        epsilon=grpo.epsilon,
        epsilon_high=grpo.epsilon_high or None,
        reward_weights=list(reward.weights),
        max_completion_length=rollout.max_new_tokens,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p or None,
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
