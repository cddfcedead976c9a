"""What several processes of one training run owe each other: equal weights, and one whole copy."""

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from transformers import Trainer

from lib.core.errors import UserError


def gather_weights(trainer: Trainer) -> dict[str, Tensor] | None:
    """All weights of a model that is cut across ranks, for the first of them to save.

    Called on every rank. None where each holds the whole model, which is then saved as it is.
    """
    if not (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled):
        return None
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    # Gathered one by one, tied weights are copies; the others are made from the one that is saved.
    tied = getattr(trainer.model, "all_tied_weights_keys", {})
    return {name: weight for name, weight in weights.items() if name not in tied}


@contextlib.contextmanager
def whole_on_every_rank(trainer: Trainer) -> Iterator[None]:
    """Let each rank compute with all weights of the policy, as often as it likes.

    FSDP2 gathers a block's weights in every forward pass. Ranks would wait for each other at every
    token, and for ever once the completions of one have ended.
    """
    if not isinstance(trainer.model, FSDPModule):
        yield
        return
    policy: Any = trainer.model
    policy.set_reshard_after_forward(False)
    try:
        # Gathers all weights, and they stay; one pass on each rank, however many follow.
        with torch.no_grad():
            policy(input_ids=torch.zeros(1, 1, dtype=torch.long, device=policy.device))
        yield
    finally:
        plugin = trainer.accelerator.state.fsdp_plugin
        policy.set_reshard_after_forward(bool(plugin.reshard_after_forward))
        # Cuts the weights up again, and forgets the forward passes, which ranks made unequally many
        # of: FSDP2 plans its backward pass by them.
        policy.reset_iter_state()


def check_grpo_can_shard(trainer: Trainer, engine: str, *, live: bool) -> None:
    """Whether what generates can see the policy's weights where they are cut across ranks.

    Raises:
        UserError: says what to use instead.
    """
    plugin = trainer.accelerator.state.deepspeed_plugin if trainer.is_deepspeed_enabled else None
    if plugin is not None and plugin.zero_stage == 3:
        raise UserError(
            "grpo cannot generate with weights cut by DeepSpeed's ZeRO-3; use "
            "lib/presets/accelerate/zero2.yaml or fsdp2.yaml"
        )
    if not trainer.is_fsdp_enabled:
        return
    if not live:
        raise UserError(
            f"rollout.engine={engine} cannot be given weights that FSDP cuts across ranks; use "
            "rollout.engine=transformers, or lib/presets/accelerate/ddp.yaml or zero2.yaml"
        )
    if trainer.accelerator.state.fsdp_plugin.fsdp_version != 2:
        raise UserError(
            "grpo cannot generate with weights cut by FSDP's first version; set fsdp_version: 2, "
            "as lib/presets/accelerate/fsdp2.yaml does"
        )


def check_ranks_agree(trainer: Trainer) -> None:
    """Compare the weights that the ranks came to, where each holds all of them.

    Called on every rank.

    Raises:
        RuntimeError: they differ, so gradients were not averaged and the ranks trained apart.
    """
    accelerator = trainer.accelerator
    if accelerator.num_processes == 1 or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return
    digest = torch.tensor([_digest(trainer.model)], device=accelerator.device)
    if accelerator.gather(digest).unique().numel() != 1:
        raise RuntimeError(
            f"the weights of {accelerator.num_processes} ranks differ after training; nothing is "
            "written, since none of them is what one process would have learned"
        )


def _digest(model: torch.nn.Module) -> int:
    digest = hashlib.sha256()
    for weight in model.parameters():
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return int.from_bytes(digest.digest()[:8], "big", signed=True)
