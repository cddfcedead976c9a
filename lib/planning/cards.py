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
    """Return a card's memory in bytes: "24" (GB) -> 24 * 10^9.

    '' gives the memory of this machine's first GPU, or 0 if it has none.

    Raises:
        UserError: `card` is no number.
    """
    if not card:
        return next((gpu.memory for gpu in find_gpus()), 0)
    if not card.isdigit():
        raise UserError(f"CARD={card}: expected the GB of a card, like 24")
    return int(card) * 10**9


def fitted(params: Params, memory: int) -> dict[str, dict[str, Any]]:
    """Return new values of gradient checkpointing and of each phase's largest micro-batch size.

    The sizes fill a card of `memory` bytes. Checkpointing computes each block twice, so it is off
    if micro-batches at least as large as in `params` fit without it. The gradient stays the same.

    Returns:
        The changed params: section → key → value, such as
        {"model": {"gradient_checkpointing": False}, "sft": {"micro_batch_size": 8}}.

    Raises:
        UserError: the model's shape is not known, or not even one row fits.
    """
    shape = shape_of(params.model)
    if shape is None:
        raise UserError(f"model.name={params.model.name}: its shape is not known; run `make fetch`")
    # The phases of this run: sft, grpo and, if params have it, dpo.
    kinds = [kind for kind in params.starts if not section_of(params, kind).skipped]
    current = {kind: section_of(params, kind).micro_batch_size for kind in kinds}
    # First without checkpointing, for at least the current sizes; then with it, for any size.
    for checkpointing, least in ((False, current), (True, dict.fromkeys(kinds, 1))):
        candidate = params.replaced(model={"gradient_checkpointing": checkpointing})
        # 0 if not even one row fits.
        sizes = {kind: _largest_size(candidate, kind, shape, memory) for kind in kinds}
        if all(sizes[kind] >= least[kind] for kind in kinds):
            return {
                "model": {"gradient_checkpointing": checkpointing},
                **{kind: {"micro_batch_size": size} for kind, size in sizes.items()},
            }
    # Not even with checkpointing: the phases of size 0.
    too_large = ", ".join(kind for kind, size in sizes.items() if not size)
    raise UserError(
        f"{too_large}: not even one row fits {FILL:.0%} of {in_bytes(memory)}; lower "
        "model.max_seq_length or vLLM's share, or take a larger card"
    )


def _largest_size(params: Params, kind: str, shape: Shape, memory: int) -> int:
    """Return the largest micro-batch of a phase that fits a card, in rows; 0 if one row is too big.

    Args:
        kind: the phase: sft, grpo or dpo.
        memory: bytes of the card.
    """
    section, batch = section_of(params, kind), batch_of(params, kind)
    # Gradient accumulation needs whole micro-batches: the divisors of the batch, largest first.
    sizes = [size for size in range(batch, 0, -1) if batch % size == 0]
    # GRPO's loss `bnpo` averages over the micro-batch: another size would change the gradient.
    if getattr(section, "loss", "") == "bnpo":
        sizes = [section.micro_batch_size]
    for size in sizes:
        # Plan all phases with this size, and take the plan of this one.
        phases = phases_of(params.replaced(**{kind: {"micro_batch_size": size}}), shape)
        (phase,) = (phase for phase in phases if phase.name == kind)
        # `bytes_on` includes CUDA's own memory and a vLLM's share of the card. A part of the card
        # stays free for fragments and kernels.
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
    # "sft.micro_batch_size: 8" for each changed param.
    flat = (
        f"{section}.{key}: {json.dumps(value)}"
        for section, values in changes.items()
        for key, value in values.items()
    )
    yield f"{card}: {', '.join(flat)}"
    yield "  `make preset PRESET=... FIT=1` writes them (CARD=GB for another card than this one)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """One way to share a step of GRPO between several cards.

    Attributes:
        training: number of cards that train.
        serving: number of cards that only generate; 0 if the training cards generate too.
        memory: bytes on a card that trains, by purpose: weights, gradients, …
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
    """Estimate a GRPO step's memory and time for each number of cards that only generate.

    The numbers are those of `SERVING`; the other cards train. A number is left out if the training
    cards could not share a step's problems and micro-batches equally.

    Args:
        cards: the number of cards.
        gb: memory of each card in GB, 10^9 bytes.

    Raises:
        UserError: `facts.yaml` has no card of this size, or the model's shape is not known.
    """
    # facts.yaml: GB of a card → its peak speeds.
    shape, peaks, grpo = shape_of(params.model), FACTS["cards"].get(gb), params.grpo
    if shape is None or peaks is None:
        known = ", ".join(map(str, FACTS["cards"]))
        raise UserError(
            f"CARDS={cards}x{gb}: expected a card of {known} GB, and a model of a known shape"
        )
    # The attained share of each peak speed, by argument of `_split`: `memory` and `link` in bytes
    # per second, `operations` per second.
    speeds = {name: share * float(peaks[name]) for name, share in ATTAINED.items()}
    splits, card = [], gb * 10**9
    for serving in SERVING:
        training = cards - serving
        if training <= 0 or grpo.prompts_per_step % training or grpo.micro_batch_size % training:
            continue
        splits.append(
            _split(params, shape, training=training, serving=serving, card=card, **speeds)
        )
    return splits


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
    """Estimate the memory and seconds of a GRPO step on `training` and `serving` cards.

    The formulas are those of the module's docstring, for completions of full length.

    Args:
        training: number of cards that train.
        serving: number of cards that only generate; 0 if the training cards generate too.
        card: bytes of a card.
        memory, link: bytes per second from a card's memory, and between cards.
        operations: a card's operations per second.
    """
    model, grpo, rollout = params.model, params.grpo, params.rollout
    # Bytes of all weights: in training, and in vLLM.
    stored = shape.parameters * BYTES[model.dtype]
    served = shape.parameters * BYTES[model.inference_dtype]

    # Bytes of vLLM on a card that generates: most of the card, or a part beside the policy.
    vllm = int((VLLM_SHARE if serving else rollout.gpu_memory_utilization) * card)
    # Bytes of one completion's keys and values.
    cache = model.max_seq_length * cache_bytes_per_token(shape, model)
    # Completions on a generating card, and how many of them vLLM's memory holds at a time. If no
    # card only serves, all training cards generate.
    per_card = math.ceil(grpo.batch_size / (serving or training))
    # `max`: `at_once` is a divisor below, also if the weights leave no room for a completion.
    at_once = max(1, (vllm - served) // cache)
    # For one more token of every completion, each round reads all weights and its own caches.
    bytes_read = math.ceil(per_card / at_once) * (served + min(per_card, at_once) * cache)

    # 6 operations per weight and token, 8 with checkpointing; `beta` adds 2 for the reference.
    per_weight = (8 if model.gradient_checkpointing else 6) + 2 * bool(grpo.beta)
    computed = per_weight * shape.parameters * grpo.batch_size * model.max_seq_length / training
    # Each micro-batch gathers the weights twice and scatters their gradients once.
    transferred = 3 * grpo.batch_size // grpo.micro_batch_size * stored
    # Params with one card's part of the micro-batch.
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
            # Gather all weights; send them on only if other cards serve.
            "transfer": (stored + served * bool(serving)) / link,
            # Computation and transfers overlap: the longer one counts.
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
    match = re.fullmatch(r"(\d+)x(\d+)", cards)
    if not match:
        raise UserError(f"CARDS={cards}: expected their number and GB, like 8x80")
    number, gb = map(int, match.groups())
    splits = splits_of(params, number, gb)
    if not splits:
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
        use = f"{split.serving} serve, {split.training} train" if split.serving else "all do both"
        times = ", ".join(f"{name} {seconds:.2g}" for name, seconds in split.seconds.items())
        sizes = ", ".join(f"{name} {in_bytes(size)}" for name, size in split.memory.items() if size)
        verdict = "fits" if split.fits(gb * 10**9) else "does not fit"
        total = in_bytes(sum(split.memory.values()))
        yield f"  {use}: {sum(split.seconds.values()):.3g} s ({times})"
        yield f"    {verdict}, {total} on a card that trains: {sizes}"
    # The best split is the fastest of those that fit.
    fitting = [split for split in splits if split.fits(gb * 10**9)]
    if not fitting:
        yield "  none fits; lower grpo.micro_batch_size or vLLM's share, or shorten completions"
        return
    best = min(fitting, key=lambda split: sum(split.seconds.values()))
    # 0 serving cards: the training cards generate too.
    yield f"  best: {best.training} train, {best.serving or 'all'} generate"
