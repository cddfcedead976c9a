"""Weights of a model on several processes (ranks): gather shards, and check that ranks agree."""

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
    """Gather a sharded model's weights on the first rank, for saving; return them by name.

    Call it on every rank; only the first rank's result is complete. None if each rank holds the
    whole model, which is then saved as it is.
    """
    if not trainer.is_fsdp_enabled:
        return None
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    # {"lm_head.weight": "model.embed_tokens.weight"}. Gathering makes a copy of each tied weight;
    # loading ties them again.
    tied = getattr(trainer.model, "all_tied_weights_keys", {})
    return {name: weight for name, weight in weights.items() if name not in tied}


@contextlib.contextmanager
def whole_on_every_rank(trainer: Trainer) -> Iterator[None]:
    """Keep all weights of an FSDP2 policy on each rank within the block, for generation.

    FSDP2 gathers weights in every forward pass: ranks that generate would wait for each other at
    every token, and for ever once one rank's completions have ended.
    """
    if not isinstance(trainer.model, FSDPModule):
        yield
        return
    policy: Any = trainer.model
    policy.set_reshard_after_forward(False)
    try:
        # A forward pass of any token gathers all weights, which then stay.
        with torch.no_grad():
            policy(input_ids=torch.zeros(1, 1, dtype=torch.long, device=policy.device))
        yield
    finally:
        plugin = trainer.accelerator.state.fsdp_plugin
        policy.set_reshard_after_forward(bool(plugin.reshard_after_forward))
        # Shards the weights, and makes FSDP2 forget the block's forward passes, by which it would
        # plan the next backward pass: their number differs between ranks.
        policy.reset_iter_state()


def check_sharding(trainer: Trainer) -> None:
    """Refuse a sharding other than FSDP2's: no other one has been run with this code.

    Raises:
        UserError: another sharding; the message names the preset to use instead.
    """
    state = trainer.accelerator.state
    is_fsdp1 = trainer.is_fsdp_enabled and state.fsdp_plugin.fsdp_version != 2
    if is_fsdp1 or trainer.is_deepspeed_enabled:
        way = "FSDP's first version" if is_fsdp1 else "DeepSpeed"
        raise UserError(
            f"{way} cannot share out the weights here; launch with "
            "lib/presets/accelerate/fsdp2.yaml (fsdp_version: 2)"
        )


def check_ranks_agree(trainer: Trainer) -> None:
    """Compare the ranks' final weights if each rank holds all of them.

    Call it on every rank.

    Raises:
        RuntimeError: they differ: gradients were not averaged, so each rank trained by itself.
    """
    accelerator = trainer.accelerator
    if accelerator.num_processes == 1 or trainer.is_fsdp_enabled:
        return
    # [1] a hash of all weights; gathered: [ranks].
    digest = torch.tensor([_digest(trainer.model)], device=accelerator.device)
    if accelerator.gather(digest).unique().numel() != 1:
        raise RuntimeError(
            f"the weights of {accelerator.num_processes} ranks differ after training; nothing is "
            "written, since none of them is what one process would have learned"
        )


def _digest(model: torch.nn.Module) -> int:
    """Hash all weights to a signed 64-bit integer, which fits into a tensor."""
    digest = hashlib.sha256()
    for weight in model.parameters():
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return int.from_bytes(digest.digest()[:8], "big", signed=True)
