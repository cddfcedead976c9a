"""A public course's contract on reinforcement learning from verifiable rewards, for study.

Its functions are built on `lib.objectives`; no stage imports this room.
"""

from lib.course.dpo import compute_per_instance_dpo_loss, dpo_loss
from lib.course.losses import (
    CourseLossType,
    compute_group_normalized_rewards,
    compute_grpo_clip_loss,
    compute_naive_policy_gradient_loss,
    compute_policy_gradient_loss,
    grpo_microbatch_train_step,
    sft_microbatch_train_step,
)
from lib.course.masking import masked_mean, masked_normalize
from lib.course.metrics import parse_gsm8k_response, parse_mmlu_response
from lib.course.packing import PackedDataset, get_packed_sft_dataset, iterate_batches
from lib.course.scoring import get_response_log_probs
from lib.course.tokens import Tokenizer, encode_alpaca, tokenize_prompt_and_output
from lib.objectives.logprobs import compute_entropy, selective_log_softmax

__all__ = [
    "CourseLossType",
    "PackedDataset",
    "Tokenizer",
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
