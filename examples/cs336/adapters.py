"""Adapters for the test-suite of a public course (Stanford CS336, assignment 5).

The suite imports these names from `tests/adapters.py`: put this file there, and it
runs against this library. Nothing is converted on the way.
"""

from examples import cs336 as course

run_tokenize_prompt_and_output = course.tokenize_prompt_and_output
run_compute_entropy = course.compute_entropy
run_get_response_log_probs = course.get_response_log_probs
run_masked_mean = course.masked_mean
run_masked_normalize = course.masked_normalize
run_sft_microbatch_train_step = course.sft_microbatch_train_step
run_compute_group_normalized_rewards = course.compute_group_normalized_rewards
run_compute_naive_policy_gradient_loss = course.compute_naive_policy_gradient_loss
run_compute_grpo_clip_loss = course.compute_grpo_clip_loss
run_compute_policy_gradient_loss = course.compute_policy_gradient_loss
run_grpo_microbatch_train_step = course.grpo_microbatch_train_step
get_packed_sft_dataset = course.get_packed_sft_dataset
run_iterate_batches = course.iterate_batches
run_parse_mmlu_response = course.parse_mmlu_response
run_parse_gsm8k_response = course.parse_gsm8k_response
run_compute_per_instance_dpo_loss = compute_per_instance_dpo_loss = (
    course.compute_per_instance_dpo_loss
)
