"""What several processes of one training run owe each other: equal weights, and one whole copy."""

import hashlib

import torch
from torch import Tensor
from transformers import Trainer


def gather_weights(trainer: Trainer) -> dict[str, Tensor] | None:
    """All weights of a model that is cut across ranks, for the first of them to save.

    Called on every rank. None where each holds the whole model, which is then saved as it is.
    """
    if not (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled):
        return None
    weights: dict[str, Tensor] = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    return weights


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
