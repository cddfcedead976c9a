"""The functions of a public course (Stanford CS336) on RL from verifiable rewards, for study.

They have the course's names and signatures, and are built on `lib.objectives`. No stage imports
this package.
"""

from examples.cs336.data import (
    cut_rows,
    encode_alpaca,
    get_packed_sft_dataset,
    iterate_batches,
    parse_gsm8k_response,
    parse_mmlu_response,
    tokenize_prompt_and_output,
)
from examples.cs336.losses import (
    CourseLossType,
    compute_group_normalized_rewards,
    compute_grpo_clip_loss,
    compute_naive_policy_gradient_loss,
    compute_per_instance_dpo_loss,
    compute_policy_gradient_loss,
    get_response_log_probs,
    grpo_microbatch_train_step,
    masked_mean,
    masked_normalize,
    sft_microbatch_train_step,
)
from lib.objectives.logprobs import compute_entropy, selective_log_softmax

__all__ = [
    "CourseLossType",
    "compute_entropy",
    "compute_group_normalized_rewards",
    "compute_grpo_clip_loss",
    "compute_naive_policy_gradient_loss",
    "compute_per_instance_dpo_loss",
    "compute_policy_gradient_loss",
    "cut_rows",
    "encode_alpaca",
    "get_packed_sft_dataset",
    "get_response_log_probs",
    "grpo_microbatch_train_step",
    "iterate_batches",
    "masked_mean",
    "masked_normalize",
    "parse_gsm8k_response",
    "parse_mmlu_response",
    "selective_log_softmax",
    "sft_microbatch_train_step",
    "tokenize_prompt_and_output",
]
