"""GRPO by TRL's own `GRPOTrainer`, unmodified (`grpo.trainer: trl`).

The oracle and the contender of `policy_gradient`, and the way of a user who trusts it more. It
generates by itself, with transformers or with vLLM in this process, and logs its own
columns; params' validation refuses what it cannot do.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from lib.params.training import Grpo, RolloutSampling
from lib.rewards.batch import Grading

SCALES = {"group": "group", "batch": "batch", "mean": "none"}
"""`grpo.advantage` in TRL's words."""


def build_trl(
    rows: Sequence[Mapping[str, Any]],
    *,
    grading: Grading,
    arguments: Mapping[str, Any],
    grpo: Grpo,
    rollout: RolloutSampling,
    **kwargs: Any,
) -> GRPOTrainer:
    """A `GRPOTrainer` that is ready to start.

    Args:
        rows: "prompt" and the columns that reward functions read.
        arguments: of `transformers.TrainingArguments`, from `grpo_arguments`.
        kwargs: model, tokenizer and callbacks.
    """
    vllm = {"vllm_mode": "colocate", "vllm_gpu_memory_utilization": rollout.gpu_memory_utilization}
    return GRPOTrainer(
        args=GRPOConfig(
            **{**arguments, "ignore_data_skip": False},
            num_generations=grpo.group_size,
            num_iterations=grpo.num_iterations,
            shuffle_dataset=grpo.shuffle,
            loss_type=grpo.loss,
            scale_rewards=SCALES[grpo.advantage],
            importance_sampling_level=grpo.importance_level,
            beta=grpo.beta,
            use_bias_correction_kl=grpo.kl_weighted,
            epsilon=grpo.epsilon,
            # TRL's bound of `cispo` is on the ratio itself.
            epsilon_high=1 + (grpo.epsilon_high or grpo.epsilon)
            if grpo.loss == "cispo"
            else grpo.epsilon_high or None,
            delta=grpo.delta or None,
            vllm_importance_sampling_mode=grpo.sampler_correction,
            vllm_importance_sampling_clip_max=grpo.correction_cap,
            entropy_coef=grpo.entropy_coef,
            use_adaptive_entropy=grpo.entropy_target > 0,
            entropy_target=grpo.entropy_target,
            cast_lm_head_to_fp32=grpo.cast_lm_head_to_fp32,
            mask_truncated_completions=grpo.mask_truncated,
            reward_weights=list(grading.weights),
            max_completion_length=rollout.max_new_tokens,
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            min_p=rollout.min_p or None,
            disable_dropout=True,
            use_vllm=rollout.engine == "vllm",
            **(vllm if rollout.engine == "vllm" else {}),
        ),
        reward_funcs=list(grading.rewards),
        train_dataset=Dataset.from_list(list(rows)),
        **kwargs,
    )
