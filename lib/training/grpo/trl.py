"""GRPO by TRL's own `GRPOTrainer`, unmodified (`grpo.trainer: trl`).

Tests compare `policy_gradient` with it, in results and in speed, and users can choose it. It
generates by itself, with transformers or with vLLM in this process, and logs its own columns, but
no rollouts (`grpo.log_problems`). The validation of params refuses other settings that it does not
have.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from lib.models.load import with_kernel
from lib.params.schema import Params
from lib.rewards.grading import Grading

SCALES = {"group": "group", "batch": "batch", "mean": "none"}
"""`grpo.advantage` → TRL's `scale_rewards`."""

AGGREGATIONS = {"sum": "sum_then_normalize", "gdpo": "normalize_then_sum"}
"""`grpo.reward_aggregation` → TRL's `multi_objective_aggregation`."""


def build_trl(
    rows: Sequence[Mapping[str, Any]],
    params: Params,
    *,
    grading: Grading,
    arguments: Mapping[str, Any],
    **kwargs: Any,
) -> GRPOTrainer:
    """Build TRL's `GRPOTrainer` from params, ready to start.

    Args:
        rows: one per problem, with "prompt" (chat messages) and the columns for reward functions.
        arguments: keyword arguments of `transformers.TrainingArguments`, from `grpo_arguments`.
        kwargs: further arguments of `GRPOTrainer`: model, tokenizer and callbacks.
    """
    grpo, rollout, settings = params.grpo, params.rollout, params.model
    vllm = {
        "use_vllm": True,
        # vLLM runs in this process, on the trainer's GPU; the other mode needs TRL's own server.
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": rollout.gpu_memory_utilization,
        # By default, vLLM demands memory for a sequence of all of the model's positions.
        "vllm_max_model_length": settings.max_seq_length,
    }
    # For the KL penalty on full weights, TRL loads the policy's files once more as the reference
    # policy, by default in float32. These arguments load it like the policy.
    load_arguments = {
        "dtype": settings.dtype,
        "attn_implementation": with_kernel(settings.attention),
    }
    # params.yaml has no nulls: an `epsilon_high` of 0 means the value of `epsilon`, and `or None`
    # below turns a 0 into TRL's None.
    epsilon_high = grpo.epsilon_high or grpo.epsilon
    return GRPOTrainer(
        args=GRPOConfig(
            # TRL takes its prompts from a data loader: a resumed run must skip those of its steps.
            **{**arguments, "ignore_data_skip": False},
            num_generations=grpo.group_size,
            generation_batch_size=grpo.prompts_per_step * grpo.group_size,
            num_iterations=grpo.num_iterations,
            shuffle_dataset=grpo.shuffle,
            loss_type=grpo.loss,
            # `SCALES` and `AGGREGATIONS` map the values in params to TRL's.
            scale_rewards=SCALES[grpo.advantage],
            multi_objective_aggregation=AGGREGATIONS[grpo.reward_aggregation],
            importance_sampling_level=grpo.importance_level,
            beta=grpo.beta,
            model_init_kwargs=load_arguments if grpo.beta and not settings.lora.rank else None,
            use_bias_correction_kl=grpo.kl_weighted,
            epsilon=grpo.epsilon,
            # For `cispo`, TRL takes the bound of the ratio itself, 1 + ε_high.
            epsilon_high=1 + epsilon_high if grpo.loss == "cispo" else epsilon_high,
            delta=grpo.delta or None,
            vllm_importance_sampling_mode=grpo.sampler_correction,
            vllm_importance_sampling_clip_max=grpo.correction_cap,
            vllm_importance_sampling_clip_min=grpo.correction_floor or None,
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
            # For the reference policy: `load_grpo_policy` has switched off the policy's dropout.
            disable_dropout=True,
            **(vllm if rollout.engine == "vllm" else {}),
        ),
        reward_funcs=list(grading.rewards),
        train_dataset=Dataset.from_list(list(rows)),
        **kwargs,
    )
