"""The public course's scoring of responses, with whole logits or in chunks.

Shapes: B sequences, T tokens, V vocabulary.
"""

import torch
from torch import Tensor

from lib.objectives.logprobs import (
    can_fuse,
    compute_entropy,
    score_labels,
    selective_log_softmax,
)


def get_response_log_probs(
    model: torch.nn.Module,
    input_ids: Tensor,
    labels: Tensor,
    return_token_entropy: bool = False,
    *,
    chunk_size: int | None = None,
) -> dict[str, Tensor]:
    """Score every label under a causal language model; nothing is masked here.

    Padding must be on the right: causal attention then keeps it from the tokens that count.

    Args:
        model: returns `.logits` [B, T, V] for input ids; for `chunk_size` also needs
            `get_output_embeddings()`, as Hugging Face models have (unwrapped from DDP or FSDP).
        input_ids: [B, T].
        labels: [B, T], the ids shifted by one.
        return_token_entropy: also score the distribution's entropy.
        chunk_size: tokens whose logits exist at one time; None computes all logits.

    Returns:
        "log_probs": [B, T]; with `return_token_entropy` also "token_entropy": [B, T].

    Raises:
        ValueError: `chunk_size` with a model that changes its logits after the output layer
            (soft-capping, scaling): chunks would score other logits than the model's.
    """
    if chunk_size is None:
        logits = model(input_ids).logits
        scores = {"log_probs": selective_log_softmax(logits, labels)}
        return scores | ({"token_entropy": compute_entropy(logits)} if return_token_entropy else {})
    if not can_fuse(model):
        raise ValueError(
            f"{type(model).__name__} changes its logits after the output layer, so they cannot be "
            "computed in chunks: use chunk_size=None"
        )
    vocabulary = len(model.get_output_embeddings().weight)  # type: ignore[operator]
    fused = score_labels(
        model,
        {"input_ids": input_ids},
        labels,
        torch.ones_like(labels, dtype=torch.bool),
        chunk_numel=chunk_size * vocabulary,
        entropy_grad=return_token_entropy,
    )
    entropy = {"token_entropy": fused.entropy} if return_token_entropy else {}
    return {"log_probs": fused.log_probs, **entropy}
