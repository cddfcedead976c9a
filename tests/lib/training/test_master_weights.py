"""Float32 weights are computed with in bfloat16 wherever the policy is asked."""

from collections.abc import Callable
from typing import Any

import torch

from lib.params.model import Model


def test_generation_reference_and_loss_run_under_autocast(
    built: Callable[..., Any], full: Model
) -> None:
    model = full.model_copy(update={"mixed_precision": "bf16"})
    trainer = built(model=model, beta=0.04, max_steps=1)
    seen: set[tuple[bool, bool, torch.dtype]] = set()

    def hook(module: Any, args: Any, result: torch.Tensor) -> None:
        seen.add((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), result.dtype))

    trainer.model.model.layers[0].self_attn.q_proj.register_forward_hook(hook)
    trainer.train()
    # With gradients is the loss, without them generation and the reference.
    assert seen == {(grad, True, torch.bfloat16) for grad in (True, False)}
    assert {weight.dtype for weight in trainer.model.parameters()} == {torch.float32}
