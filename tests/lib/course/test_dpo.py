import math

import pytest
import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from lib.course import compute_per_instance_dpo_loss, dpo_loss

PAIR = {"prompt": "Add 1 and 2.", "response_chosen": "It is 3.", "response_rejected": "It is four!"}


def test_gradient_is_the_papers() -> None:
    """Section 4 of the paper: −β σ(r_l − r_w) on log π(y_w), the opposite on log π(y_l)."""
    chosen, rejected = torch.randn(2, 3, dtype=torch.float64).requires_grad_().unbind()
    reference = torch.randn(2, 3, dtype=torch.float64)
    loss = dpo_loss(chosen, rejected, *reference, beta=0.3).sum()
    gradients = torch.autograd.grad(loss, (chosen, rejected))
    margin = (chosen - reference[0]) - (rejected - reference[1])
    weight = 0.3 * torch.sigmoid(-0.3 * margin)
    torch.testing.assert_close(gradients, (-weight, weight))


def test_only_the_policy_gets_gradients(
    model: Qwen3ForCausalLM, reference_model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    compute_per_instance_dpo_loss(model, reference_model, tokenizer, 0.5, **PAIR).backward()
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())
    assert all(p.grad is None for p in reference_model.parameters())


def test_a_response_that_begins_like_the_other_is_scored_whole(
    model: Qwen3ForCausalLM, reference_model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    pair = PAIR | {"response_chosen": "3", "response_rejected": "34"}
    loss = compute_per_instance_dpo_loss(model, reference_model, tokenizer, 0.5, **pair)
    assert loss.isfinite()
    assert loss.item() != pytest.approx(math.log(2), abs=1e-3)
