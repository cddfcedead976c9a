"""An optimiser step as trainers count it; torch-free, so that a plan can say it."""

from lib.errors import UserError


def micro_batches(batch: int, *, micro_batch: int, world_size: int) -> dict[str, int]:
    """Cut one optimiser step's batch into forward passes per process.

    Raises:
        UserError: the processes cannot share the micro-batch evenly.
    """
    per_device, rest = divmod(micro_batch, world_size)
    if rest or not per_device:
        raise UserError(
            f"micro_batch_size={micro_batch} cannot be shared by {world_size} processes; "
            f"use a multiple of {world_size}"
        )
    return {
        "per_device_train_batch_size": per_device,
        "gradient_accumulation_steps": batch // micro_batch,
    }
