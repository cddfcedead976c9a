"""The largest micro-batches that fit a card, and GRPO's steps on several cards under FSDP2.

The seconds of a step are bytes or operations, divided by the card's speed (`facts.yaml`) times the
share of it in `ATTAINED`:

    generation  for each new token, a card reads all weights, and its batch's keys and values
    transfer    the ranks gather all weights, and send them to the servers in the servers' type
    training    the longer of: 6 operations per weight and token, 8 with checkpointing, 2 more for
                a reference (arXiv:2001.08361); each micro-batch's transfers, which gather the
                weights twice and scatter their gradients once
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from typing import Any

from lib.core.errors import UserError
from lib.engines.gpu import find_gpus
from lib.engines.registry import VLLM_SHARE
from lib.params import Params
from lib.planning.memory import (
    BYTES,
    FACTS,
    Shape,
    batch_of,
    cache_bytes_per_token,
    memory_at_peak,
    section_of,
    shape_of,
)
from lib.planning.plan import CUDA_BYTES, in_bytes, phases_of

FILL = 0.9
"""Largest share of a card's memory for a plan; fragments and kernels need the rest."""

ATTAINED = {"memory": 0.6, "link": 0.7, "operations": 0.4}
"""Assumed shares of a card's peak speeds in a run; they were not measured."""

SERVING = (0, 1, 2, 4)
"""Numbers of cards for vLLM only, without training; with 0, each training card has a vLLM."""


def card_memory(card: str) -> int:
    """Convert a card's GB, like "24", to bytes; '' gives the first GPU here, 0 without a GPU.

    Raises:
        UserError: `card` is no number.
    """
    if not card:
        return next((gpu.memory for gpu in find_gpus()), 0)
    if not card.isdigit():
        raise UserError(f"CARD={card}: expected the GB of a card, like 24")
    return int(card) * 10**9


def fitted(params: Params, memory: int) -> dict[str, dict[str, Any]]:
    """Return checkpointing and micro-batch sizes that fill a card of `memory` bytes.

    These params change no gradient, except a micro-batch under the loss `bnpo`, which keeps its
    size. Gradient checkpointing computes each block twice, so it is switched off if micro-batches
    of at least the size in `params` fit without it.

    Returns:
        Section → key → value.

    Raises:
        UserError: the model's shape is not known, or not even one row fits.
    """
    shape = shape_of(params.model)
    if shape is None:
        raise UserError(f"model.name={params.model.name}: its shape is not known; run `make fetch`")
    kinds = [kind for kind in params.starts if not section_of(params, kind).skipped]
    for checkpointing in (False, True):
        candidate = params.replaced(model={"gradient_checkpointing": checkpointing})
        sizes = {kind: _largest(candidate, kind, shape, memory) for kind in kinds}
        current = {kind: section_of(params, kind).micro_batch_size for kind in kinds}
        # With checkpointing, any size that fits will do.
        if all(sizes[kind] >= (1 if checkpointing else current[kind]) for kind in kinds):
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
    """Return the largest fitting micro-batch of a phase, in rows; 0 if not even one row fits."""
    section, batch = section_of(params, kind), batch_of(params, kind)
    # `bnpo` averages over the micro-batch, so that another size would change the gradient.
    fixed = getattr(section, "loss", "") == "bnpo"
    sizes = [section.micro_batch_size] if fixed else range(batch, 0, -1)
    # Descending divisors of the batch, since gradient accumulation needs whole micro-batches.
    for size in (size for size in sizes if batch % size == 0):
        phases = phases_of(params.replaced(**{kind: {"micro_batch_size": size}}), shape)
        (phase,) = (phase for phase in phases if phase.name == kind)
        if phase.bytes_on(memory) <= FILL * memory:
            return size
    return 0


def fit_lines(params: Params, memory: int) -> Iterator[str]:
    """Format `fitted` for a card of `memory` bytes, and the command to write these params."""
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """One way to share a step of GRPO between several cards.

    Attributes:
        training: number of cards that train.
        serving: number of cards that only generate; 0 if the training cards generate too.
        memory: bytes by purpose on a card that trains.
        seconds: part of a step (generation, transfer, training) → its time.
    """

    training: int
    serving: int
    memory: dict[str, int]
    seconds: dict[str, float]

    def fits(self, card: int) -> bool:
        """Return True if a training card of `card` bytes has enough memory."""
        return sum(self.memory.values()) <= FILL * card


def splits_of(params: Params, cards: int, gb: int) -> list[Split]:
    """Estimate a GRPO step's memory and time for each number of serving cards in `SERVING`.

    A number is left out if the training cards could not share a step's problems and micro-batches
    equally.

    Args:
        cards: the number of cards.
        gb: memory of each card in GB, 10^9 bytes.

    Raises:
        UserError: `facts.yaml` has no card of this size, or the model's shape is not known.
    """
    shape, card, grpo = shape_of(params.model), FACTS["cards"].get(gb), params.grpo
    if shape is None or card is None:
        known = ", ".join(map(str, FACTS["cards"]))
        raise UserError(
            f"CARDS={cards}x{gb}: expected a card of {known} GB, and a model of a known shape"
        )
    # Bytes or operations per second.
    speed = {name: share * float(card[name]) for name, share in ATTAINED.items()}
    return [
        _split(params, shape, training=cards - serving, serving=serving, card=gb * 10**9, **speed)
        for serving in SERVING
        if cards > serving
        and not grpo.prompts_per_step % (cards - serving)
        and not grpo.micro_batch_size % (cards - serving)
    ]


def _split(
    params: Params,
    shape: Shape,
    *,
    training: int,
    serving: int,
    card: int,
    memory: float,
    link: float,
    operations: float,
) -> Split:
    """Estimate a GRPO step on `training` and `serving` cards.

    Args:
        card: bytes of a card.
        memory, link, operations: a card's bytes or operations per second.
    """
    model, grpo, rollout = params.model, params.grpo, params.rollout
    # Bytes of all weights, as training stores them and as vLLM has them.
    stored = shape.parameters * BYTES[model.dtype]
    served = shape.parameters * BYTES[model.inference_dtype]
    # vLLM's bytes on a card that generates, and the bytes of one completion's keys and values.
    vllm = int((VLLM_SHARE if serving else rollout.gpu_memory_utilization) * card)
    row = model.max_seq_length * cache_bytes_per_token(shape, model)
    # Completions per generating card, and the number that fits in vLLM's memory at a time.
    per_card = math.ceil(grpo.batch_size / (serving or training))
    at_once = max(1, (vllm - served) // row)
    # The bytes to read for one more token of every completion, in as many rounds as needed.
    bytes_read = math.ceil(per_card / at_once) * (served + min(per_card, at_once) * row)
    per_weight = (8 if model.gradient_checkpointing else 6) + 2 * bool(grpo.beta)
    computed = per_weight * shape.parameters * grpo.batch_size * model.max_seq_length / training
    transferred = 3 * grpo.batch_size // grpo.micro_batch_size * stored
    of_rank = params.replaced(grpo={"micro_batch_size": grpo.micro_batch_size // training})
    return Split(
        training=training,
        serving=serving,
        memory={
            **memory_at_peak(of_rank, "grpo", shape, ranks=training),
            "CUDA": CUDA_BYTES,
            "vLLM": 0 if serving else vllm,
        },
        seconds={
            "generation": rollout.max_new_tokens * bytes_read / memory,
            "transfer": (stored + served * bool(serving)) / link,
            "training": max(computed / operations, transferred / link),
        },
    )


def split_lines(params: Params, cards: str) -> Iterator[str]:
    """Format the memory and seconds of a GRPO step for each way to share the cards, and the best.

    Args:
        cards: number and GB of the cards, like "8x80".

    Raises:
        UserError: `cards` has another form or an unknown size, or ranks cannot share a step.
    """
    if not (match := re.fullmatch(r"(\d+)x(\d+)", cards)):
        raise UserError(f"CARDS={cards}: expected their number and GB, like 8x80")
    number, gb = map(int, match.groups())
    if not (splits := splits_of(params, number, gb)):
        raise UserError(
            f"CARDS={cards}: no number of them can share grpo.prompts_per_step and "
            "grpo.micro_batch_size; make both a multiple of it"
        )
    yield (
        f"grpo on {cards} GB under FSDP2, seconds a step at {FACTS['cards'][gb]['name']}'s speed "
        f"({', '.join(f'{share:.0%} of its {name}' for name, share in ATTAINED.items())}), all "
        "completions of full length:"
    )
    for split in splits:
        way = f"{split.serving} serve, {split.training} train" if split.serving else "all do both"
        parts = ", ".join(f"{name} {seconds:.2g}" for name, seconds in split.seconds.items())
        held = ", ".join(f"{name} {in_bytes(size)}" for name, size in split.memory.items() if size)
        verdict = "fits" if split.fits(gb * 10**9) else "does not fit"
        yield f"  {way}: {sum(split.seconds.values()):.3g} s ({parts})"
        yield f"    {verdict}, {in_bytes(sum(split.memory.values()))} on a card that trains: {held}"
    fitting = [split for split in splits if split.fits(gb * 10**9)]
    if not fitting:
        yield "  none fits; lower grpo.micro_batch_size or vLLM's share, or shorten completions"
        return
    best = min(fitting, key=lambda split: sum(split.seconds.values()))
    yield f"  best: {best.training} train, {best.serving or 'all'} generate"
