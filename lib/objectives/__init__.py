"""Objectives: what training maximises, as plain torch functions, importable by themselves.

logprobs, masking, advantages, losses, kl, dpo, packing, optim; tokens (text to ids with a mask) and
steps (loss and backward of a micro-batch). docs/objectives.md says which of them a run uses.
"""

from lib.objectives.advantages import (
    Baseline,
    compute_group_normalized_rewards,
    group_advantages,
    has_signal,
)
from lib.objectives.dpo import compute_per_instance_dpo_loss, dpo_loss
from lib.objectives.kl import KLEstimator, kl_per_token
from lib.objectives.logprobs import (
    TokenScores,
    compute_entropy,
    get_response_log_probs,
    score_hidden,
    selective_log_softmax,
)
from lib.objectives.losses import (
    CourseLossType,
    LossType,
    PolicyLoss,
    RatioLevel,
    aggregate_token_losses,
    compute_grpo_clip_loss,
    compute_naive_policy_gradient_loss,
    compute_policy_gradient_loss,
    log_importance_ratio,
    policy_loss,
)
from lib.objectives.masking import masked_mean, masked_normalize
from lib.objectives.optim import MemoryEfficientAdamW
from lib.objectives.packing import PackedDataset, get_packed_sft_dataset, iterate_batches
from lib.objectives.steps import grpo_microbatch_train_step, sft_microbatch_train_step
from lib.objectives.tokens import Tokenizer, encode_alpaca, tokenize_prompt_and_output

__all__ = [
    "Baseline",
    "CourseLossType",
    "KLEstimator",
    "LossType",
    "MemoryEfficientAdamW",
    "PackedDataset",
    "PolicyLoss",
    "RatioLevel",
    "TokenScores",
    "Tokenizer",
    "aggregate_token_losses",
    "compute_entropy",
    "compute_group_normalized_rewards",
    "compute_grpo_clip_loss",
    "compute_naive_policy_gradient_loss",
    "compute_per_instance_dpo_loss",
    "compute_policy_gradient_loss",
    "dpo_loss",
    "encode_alpaca",
    "get_packed_sft_dataset",
    "get_response_log_probs",
    "group_advantages",
    "grpo_microbatch_train_step",
    "has_signal",
    "iterate_batches",
    "kl_per_token",
    "log_importance_ratio",
    "masked_mean",
    "masked_normalize",
    "policy_loss",
    "score_hidden",
    "selective_log_softmax",
    "sft_microbatch_train_step",
    "tokenize_prompt_and_output",
]
