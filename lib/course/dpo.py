"""Direct preference optimisation: a classification loss on pairs of completions.

    ℓ = −log σ(β · [(log π(y_w) − log π_ref(y_w)) − (log π(y_l) − log π_ref(y_l))])

y_w the chosen and y_l the rejected completion of one prompt, log-probs summed over their tokens.
Source: DPO, arXiv:2305.18290, eq. 7.
Differs from the paper in: nothing.

Shapes: N pairs.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lib.course.scoring import get_response_log_probs
from lib.course.tokens import Tokenizer, encode_alpaca


def dpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    *,
    beta: float,
) -> Tensor:
    """DPO's loss from summed log-probs.

    Args:
        policy_chosen: [N] log π(y_w).
        policy_rejected: [N] log π(y_l).
        reference_chosen: [N] log π_ref(y_w).
        reference_rejected: [N] log π_ref(y_l).
        beta: how dear it is to leave the reference policy; larger stays closer.

    Returns:
        [N]; log 2 where the policy prefers neither more than the reference does.
    """
    margin = (policy_chosen - reference_chosen) - (policy_rejected - reference_rejected)
    return -logsigmoid(beta * margin)


def compute_per_instance_dpo_loss(
    lm: torch.nn.Module,
    lm_ref: torch.nn.Module,
    tokenizer: Tokenizer,
    beta: float,
    prompt: str,
    response_chosen: str,
    response_rejected: str,
) -> Tensor:
    """DPO's loss of one pair of responses to an instruction, in Alpaca's template.

    The models may be on different devices; only `lm` gets gradients.

    Args:
        lm: the policy in training.
        lm_ref: the reference policy.
        tokenizer: of both.
        beta: see `dpo_loss`.
        prompt: the instruction.
        response_chosen: the better response.
        response_rejected: the worse one.

    Returns:
        Scalar, on `lm`'s device.
    """
    chosen = encode_alpaca(tokenizer, prompt=prompt, response=response_chosen)
    rejected = encode_alpaca(tokenizer, prompt=prompt, response=response_rejected)
    # tokens before the responses part are scored alike in both and cancel, so they are left out
    # of the sums: cancelling in floating point would leave noise in loss and gradient
    start = _common_prefix(chosen, rejected)
    policy = [_log_prob(lm, ids, start) for ids in (chosen, rejected)]
    with torch.no_grad():
        reference = [_log_prob(lm_ref, ids, start) for ids in (chosen, rejected)]
    device = policy[0].device
    return dpo_loss(*policy, *(score.to(device) for score in reference), beta=beta)


def _common_prefix(first: list[int], second: list[int]) -> int:
    """Number of leading tokens that both have; 0 for equal lists, whose margin is 0 anyway."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), 0)


def _log_prob(model: torch.nn.Module, ids: list[int], start: int) -> Tensor:
    """Scalar: log-probability of `ids[start:]` after `ids[:start]`."""
    row = torch.tensor([ids], device=next(model.parameters()).device)
    scores = get_response_log_probs(model, row[:, :-1], row[:, 1:])["log_probs"]
    return scores[0, max(start, 1) - 1 :].sum()
