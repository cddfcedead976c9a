"""The adapters that a public course (Stanford CS336, assignment 5) asks its students to write.

Its test-suite imports these names from `tests/adapters.py`: put this file there, and the suite
runs against this library. Nothing is converted on the way.
"""

from lib import objectives

run_tokenize_prompt_and_output = objectives.tokenize_prompt_and_output
run_compute_entropy = objectives.compute_entropy
run_get_response_log_probs = objectives.get_response_log_probs
run_masked_mean = objectives.masked_mean
run_masked_normalize = objectives.masked_normalize
run_sft_microbatch_train_step = objectives.sft_microbatch_train_step
run_compute_group_normalized_rewards = objectives.compute_group_normalized_rewards
run_compute_naive_policy_gradient_loss = objectives.compute_naive_policy_gradient_loss
run_compute_grpo_clip_loss = objectives.compute_grpo_clip_loss
run_compute_policy_gradient_loss = objectives.compute_policy_gradient_loss
run_grpo_microbatch_train_step = objectives.grpo_microbatch_train_step
get_packed_sft_dataset = objectives.get_packed_sft_dataset
run_iterate_batches = objectives.iterate_batches
run_compute_per_instance_dpo_loss = compute_per_instance_dpo_loss = (
    objectives.compute_per_instance_dpo_loss
)
