"""Names of TRL 1.14.0 that `lib.trainers.policy_gradient` overrides or sets, and why.

None of them is a public interface of TRL, so each has its signature checked by a test: after an
update of TRL that test says what moved. All stand in `trl/trainer/grpo_trainer.py`.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seam:
    """One method of `GRPOTrainer` that is overridden.

    Attributes:
        parameters: as TRL declares them.
        why: what the override adds.
        until: when it can go.
    """

    parameters: tuple[str, ...]
    why: str
    until: str


OVERRIDDEN = {
    "_generate": Seam(
        parameters=("self", "prompts"),
        why="replaces groups without signal; masks by finish reason; lengths of what is trained on",
        until="TRL has dynamic sampling, and its engines say why a completion ended",
    ),
    "_generate_and_score_completions": Seam(
        parameters=("self", "inputs"),
        why="advantages none and rloo; the sampler check for engines with their own weights",
        until="TRL takes a function for advantages",
    ),
    "_calculate_rewards": Seam(
        parameters=("self", "inputs", "prompts", "completions", "completion_ids_list"),
        why="scores once what dynamic sampling has scored; keeps rewards for our advantages",
        until="as _generate and _generate_and_score_completions",
    ),
    "_prepare_inputs": Seam(
        parameters=("self", "generation_batch"),
        why="packs rows into micro-batches by prompt and length (`lib.trainers.batching`)",
        until="TRL packs them",
    ),
    "_compute_loss": Seam(
        parameters=("self", "model", "inputs"),
        why="leaves the old policy out for `reinforce`; says when log-probs can be compared; "
        "leaves micro-batches without advantages out (`lib.trainers.batching`)",
        until="TRL has a REINFORCE loss, and as below",
    ),
    "_get_per_token_logps_and_entropies": Seam(
        parameters=("self", "model", "args", "batch_size", "compute_aux_loss", "kwargs"),
        why="compares the sampler's log-probs with those of the loss, without a further forward; "
        "computes a prompt once for its completions (`lib.trainers.batching`)",
        until="TRL logs sampling_logp_difference for samplers that need no correction",
    ),
}

ATTRIBUTES = (
    "use_vllm",
    "vllm_generation",
    "_last_loaded_step",
    "vllm_importance_sampling_correction",
    "ref_model",
    "beta",
    "_metrics",
    "_logs",
    "num_generations_eval",
    "_buffered_inputs",
    "_step",
    "aux_loss_enabled",
    "_entropy_bonus_enabled",
    "use_liger_kernel",
    "loss_type",
    "reward_weights",
)
"""Read or set on the instance; TRL assigns each of them in `GRPOTrainer.__init__`."""
