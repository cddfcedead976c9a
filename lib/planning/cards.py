"""The largest micro-batches that fit a card, or the CPU."""

import json
import os
from collections.abc import Iterator
from typing import Any

import psutil

from lib.core.errors import UserError
from lib.models.gpu import find_gpus
from lib.params import Params
from lib.planning.memory import Shape, micro_batch_sizes, section_of, shape_of
from lib.planning.plan import in_bytes, phases_of

FILL = 0.9
"""Largest share of a card's memory for a plan; fragments and kernels need the rest."""


def card_memory(card: str) -> int:
    """Return a card's memory in bytes: "24" (GB) -> 24 * 10^9.

    '' gives the memory of this machine's first GPU, or 0 if it has none.

    Raises:
        UserError: `card` is no number.
    """
    if not card:
        return next((gpu.memory for gpu in find_gpus()), 0)
    if not card.isdecimal():
        raise UserError(f"--card {card}: expected the GB of a card, like 24")
    return int(card) * 10**9


def fitted(params: Params, memory: int) -> dict[str, dict[str, Any]]:
    """Return new values of gradient checkpointing and of each phase's largest micro-batch size.

    The sizes fill a card of `memory` bytes. Checkpointing computes each block twice, so it is off
    if micro-batches at least as large as in `params` fit without it. The gradient stays the same:
    with the loss `bnpo`, only the size in `params` is tried.

    Returns:
        The changed params: section → key → value, such as
        {"model": {"gradient_checkpointing": False}, "sft": {"micro_batch_size": 8}}.

    Raises:
        UserError: the model's shape is not known, or no size that may be tried fits.
    """
    shape = shape_of(params.model)
    if shape is None:
        raise UserError(f"model.name={params.model.name}: its shape is not known; run `make fetch`")
    # The phases of this run: sft, grpo and, if params have it, dpo.
    kinds = [kind for kind in params.starts if not section_of(params, kind).skipped]
    current = {kind: section_of(params, kind).micro_batch_size for kind in kinds}
    for checkpointing, least in ((False, current), (True, dict.fromkeys(kinds, 1))):
        candidate = params.replaced(model={"gradient_checkpointing": checkpointing})
        sizes = {kind: _largest_size(candidate, kind, shape, memory) for kind in kinds}
        if all(sizes[kind] >= least[kind] for kind in kinds):
            return {
                "model": {"gradient_checkpointing": checkpointing},
                **{kind: {"micro_batch_size": size} for kind, size in sizes.items()},
            }
    too_large = ", ".join(kind for kind, size in sizes.items() if not size)
    raise UserError(
        f"{too_large}: no micro-batch with the same gradient fits {FILL:.0%} of "
        f"{in_bytes(memory)}; lower model.max_seq_length or vLLM's share, or take a larger card"
    )


def fitted_to_cpu(params: Params) -> dict[str, Any]:
    """Return new values for this machine's CPU: types, threads, and `fitted` to its free memory.

    With bfloat16 instructions, a step of SmolLM2's width took 0.6 of its time in float32, and one
    of the tiny model 0.9.
    """
    # Only here, since it imports torch.
    from lib.models.runtime import cpu_has_bfloat16

    types = {"mixed_precision": "fp32", "dtype": "float32"}
    if cpu_has_bfloat16():
        half = params.model.dtype == "float16"  # needs the scaled loss of a GPU
        types = {"mixed_precision": "bf16", "dtype": "bfloat16" if half else params.model.dtype}
    changes = fitted(params.replaced(model=types), psutil.virtual_memory().available)
    changes["model"] |= types
    return {"torch_threads": len(os.sched_getaffinity(0)), **changes}


def _largest_size(params: Params, kind: str, shape: Shape, memory: int) -> int:
    """Return the largest micro-batch of a phase that fits a card, in rows; 0 if no size fits.

    Args:
        kind: the phase: sft, grpo or dpo.
        memory: bytes of the card.
    """
    for size in micro_batch_sizes(params, kind):
        phases = phases_of(params.replaced(**{kind: {"micro_batch_size": size}}), shape)
        (phase,) = (phase for phase in phases if phase.name == kind)
        if phase.bytes_on(memory) <= FILL * memory:
            return size
    return 0


def fit_lines(params: Params, memory: int) -> Iterator[str]:
    """Yield the params that fill a card of `memory` bytes, and the command to write them.

    If nothing fits, yield only one line with the reason.
    """
    card = f"a card of {memory / 1e9:.0f} GB, filled to {FILL:.0%}"
    try:
        changes = fitted(params, memory)
    except UserError as error:
        yield f"{card}: {error.message}"
        return
    flat = (
        f"{section}.{key}: {json.dumps(value)}"
        for section, values in changes.items()
        for key, value in values.items()
    )
    yield f"{card}: {', '.join(flat)}"
    yield "  `./reckon preset ... --fit` writes them (--card GB for another card than this one)"
