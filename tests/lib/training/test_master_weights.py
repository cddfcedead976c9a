"""Float32 weights are computed with in bfloat16 wherever the policy is asked."""

from pathlib import Path
from typing import Any

import torch

from lib.params import Params
from lib.params.model import Model
from lib.problems.generated import GeneratedSets
from tests.lib.training.steps import build


def test_generation_reference_and_loss_run_under_autocast_over_float32_weights(
    smoke: Params, full: Model, sets: GeneratedSets, base: Path, tmp_path: Path
) -> None:
    model = full.model_copy(update={"mixed_precision": "bf16"})
    trainer = build(sets.grpo, base, smoke, tmp_path, model=model, beta=0.04, max_steps=1)
    seen: set[tuple[str, bool, torch.dtype]] = set()

    def hook(module: Any, args: Any, result: torch.Tensor) -> None:
        asked = "loss" if torch.is_grad_enabled() else "generation or reference"
        seen.add((asked, torch.is_autocast_enabled("cpu"), result.dtype))

    trainer.model.model.layers[0].self_attn.q_proj.register_forward_hook(hook)
    trainer.train()
    assert seen == {
        ("loss", True, torch.bfloat16),
        ("generation or reference", True, torch.bfloat16),
    }
    assert {weight.dtype for weight in trainer.model.parameters()} == {torch.float32}
