"""The largest micro-batches that fit a card, and a run's phases on several cards."""

import json
from collections.abc import Iterator
from typing import Any

from lib.core.errors import UserError
from lib.engines.gpu import find_gpus
from lib.params import Params
from lib.planning.memory import Shape, batch_of, section_of, shape_of
from lib.planning.plan import in_bytes, phases_of

FILL = 0.9
"""Of a card, the most that a plan may take: fragments and the kernels' own memory are not in it."""


def card_memory(card: str) -> int:
    """Return the bytes of a card of `card` GB, or of the first GPU here; 0 without either.

    Raises:
        UserError: `card` is no number.
    """
    if not card:
        return next((gpu.memory for gpu in find_gpus()), 0)
    if not card.isdigit():
        raise UserError(f"CARD={card}: expected the GB of a card, like 24")
    return int(card) * 10**9


def fitted(params: Params, memory: int) -> dict[str, dict[str, Any]]:
    """Return the params that use a card of `memory` bytes: checkpointing, and micro-batches.

    No gradient depends on them but `bnpo`'s, whose micro-batch stays. Checkpointing, which computes
    each block twice, goes where the micro-batches still have the size that they have with it.

    Raises:
        UserError: the model's shape is not known, or not even one row fits.
    """
    shape = shape_of(params.model)
    if shape is None:
        raise UserError(f"model.name={params.model.name}: its shape is not known; run `make fetch`")
    kinds = [kind for kind in params.starts if not section_of(params, kind).skipped]
    for checkpointing in (False, True):
        model = params.model.model_copy(update={"gradient_checkpointing": checkpointing})
        set_so = params.model_copy(update={"model": model})
        sizes = {kind: _largest(set_so, kind, shape, memory) for kind in kinds}
        now = {kind: section_of(params, kind).micro_batch_size for kind in kinds}
        if all(sizes[kind] >= (1 if checkpointing else now[kind]) for kind in kinds):
            return {
                "model": {"gradient_checkpointing": checkpointing},
                **{kind: {"micro_batch_size": size} for kind, size in sizes.items()},
            }
    short = ", ".join(kind for kind, size in sizes.items() if not size)
    raise UserError(
        f"{short}: not even one row fits {FILL:.0%} of {in_bytes(memory)}; lower "
        "model.max_seq_length or vLLM's share, or take a larger card"
    )


def _largest(params: Params, kind: str, shape: Shape, memory: int) -> int:
    """Return the largest micro-batch of a phase that fits; 0 for none."""
    section, batch = section_of(params, kind), batch_of(params, kind)
    fixed = getattr(section, "loss", "") == "bnpo"
    sizes = [section.micro_batch_size] if fixed else range(batch, 0, -1)
    for size in (size for size in sizes if batch % size == 0):
        changed = section.model_copy(update={"micro_batch_size": size})
        phases = phases_of(params.model_copy(update={kind: changed}), shape)
        (phase,) = (phase for phase in phases if phase.name == kind)
        if phase.bytes_on(memory) <= FILL * memory:
            return size
    return 0


def fit_lines(params: Params, memory: int) -> Iterator[str]:
    """Say what fills a card of `memory` bytes, and how to write it."""
    card = f"a card of {memory / 1e9:.0f} GB, filled to {FILL:.0%}"
    try:
        changes = fitted(params, memory)
    except UserError as error:
        yield f"{card}: {error.message}"
        return
    flat = (
        f"{name}.{key}: {json.dumps(keys[key])}" for name, keys in changes.items() for key in keys
    )
    yield f"{card}: {', '.join(flat)}"
    yield "  `make preset PRESET=... FIT=1` writes them (CARD=GB for another card than this one)"
