from examples.cs336 import compute_per_instance_dpo_loss

PAIR = {"prompt": "Add 1 and 2.", "response_chosen": "It is 3.", "response_rejected": "It is four!"}


def test_only_the_policy_gets_gradients(model, reference_model, tokenizer):
    compute_per_instance_dpo_loss(model, reference_model, tokenizer, 0.5, **PAIR).backward()
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())
    assert all(p.grad is None for p in reference_model.parameters())
