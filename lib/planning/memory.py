"""What a training phase holds in memory at its peak, from shapes alone.

A step passes through four moments, and the largest of them is what the phase needs:

    generation   weights, reference, optimiser state; keys and values of what is generated
    loss         what the backward pass needs of all layers, and the output layer's logits
    backward     the same without logits, the output layer's gradient, one block's temporaries
    update       all gradients; a second one of a tied embedding, whose two parts are summed

With gradient accumulation all gradients are there at every moment but the first.

Bytes of one token in one block, h hidden, q and k widths of queries and of keys, i intermediate,
r bytes of the residual stream (of the weights' type), c bytes that products are computed in:

    h · (2 · (4 + r) + c · copies) + c · (2q + 2k + 4i) + (4 + c) · (q + k) with norms of q and k

A norm keeps its input in float32 and its quotient; a product keeps its own copy of its input where
autocast has to convert it (`copies` 5: q, k, v, gate, up) and shares it where not (2). Attention is
sdpa's or flash's, which keep no table of scores. Checked against torch's allocations on a CPU and
under fake tensors (tests/lib/planning/test_memory.py); on a GPU it is not verified: kernels, the
allocator's fragments and CUDA itself are outside it.
"""

import dataclasses
from typing import Literal

from lib.params import Params
from lib.params.model import Model
from lib.planning.sizes import BYTES, Shape

CHUNK_NUMEL = 2**25
"""Logits that `lib.objectives.logprobs` holds at a time; a plan imports no torch."""

LARGE = 2**26
"""Logits of a micro-batch from which on `lib.trainers.scoring` fuses."""

SFT_CHUNK = 256
"""Tokens of a chunk of TRL's `chunked_nll` (trl 1.14)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """What one forward pass of a phase is given.

    Attributes:
        tokens: positions that pass through the blocks.
        scored: of them, those whose next token is scored.
        loss: how: `chunked` by TRL's SFT, `fused` by ours, `whole` logits.
        accumulates: several forward passes make a step.
        offloads: the optimiser's state is in CPU memory.
        reference: a second copy of all weights, which the policy is tied to.
        generated: sequences that the policy itself generates at a time.
    """

    tokens: int
    scored: int
    loss: Literal["chunked", "fused", "whole"]
    accumulates: bool
    offloads: bool
    reference: bool = False
    generated: int = 0


def workload(params: Params, phase: str, shape: Shape) -> Workload:
    """The largest forward pass of a phase: all rows as long as params allow."""
    model, longest, new = params.model, longest_row(params, phase), params.rollout.max_new_tokens
    section = getattr(params, phase)
    full, rows = not model.lora.rank, section.micro_batch_size
    common = {"offloads": section.optimizer == "memory_efficient_adamw"}
    validated = params.validation.batch_size if section.eval_steps else 0
    if params.validation.engine != "transformers":
        validated = 0
    if phase == "sft":
        return Workload(
            tokens=rows * longest, scored=rows * longest, loss="chunked", generated=validated,
            accumulates=params.sft.batch_size > rows, **common,
        )  # fmt: skip
    if phase == "dpo":  # both completions of each pair, each behind its prompt
        return Workload(
            tokens=2 * rows * longest, scored=2 * rows * longest, loss="whole",
            accumulates=params.dpo.batch_size > rows, reference=full, generated=validated, **common,
        )  # fmt: skip
    grpo, scored = params.grpo, rows * (new + 1)
    completions = grpo.prompts_per_step * grpo.group_size
    # Without checkpointing a prompt is computed once for all of its completions.
    prompts = rows if model.gradient_checkpointing else -(-rows // grpo.group_size)
    return Workload(
        tokens=scored + prompts * (longest - new),
        scored=scored,
        loss="fused" if scored * shape.vocab > LARGE and model.backend != "unsloth" else "whole",
        accumulates=completions > rows,
        reference=full and grpo.beta > 0,
        generated=max(validated, completions * (params.rollout.engine == "transformers")),
        **common,
    )


def longest_row(params: Params, phase: str) -> int:
    """Tokens of the longest row, prompt and completion; packed rows are all as long as allowed."""
    cut = params.prepare.lengths.max_tokens
    whole = phase != "sft" or params.sft.packing or not cut
    return params.model.max_seq_length if whole else min(cut, params.model.max_seq_length)


def memory_at_peak(model: Model, shape: Shape, work: Workload) -> dict[str, int]:
    """Bytes by what they hold, at the largest of the moments; vLLM's share is not among them."""
    return max(_moments(model, shape, work).values(), key=lambda parts: sum(parts.values()))


def sampling_memory(model: Model, shape: Shape, batch: int) -> dict[str, int]:
    """The same where a merged policy only generates, `batch` sequences at a time."""
    return {
        "weights": shape.parameters * BYTES[model.inference_dtype],
        "cache": batch * model.max_seq_length * cache_bytes_per_token(shape, model),
        "logits": 2 * batch * shape.vocab * 4,
    }


def _moments(model: Model, shape: Shape, work: Workload) -> dict[str, dict[str, int]]:
    stored = BYTES[model.dtype]
    compute = 2 if model.mixed_precision == "bf16" else stored
    full, trained = not model.lora.rank, shape.trained(model)
    # peft keeps adapters in float32, whatever the weights below them are.
    moved = stored if full else 4
    weights = shape.parameters * stored + (0 if full else trained * moved)
    embedding = shape.vocab * shape.hidden * moved if full else 0
    held = {"weights": weights, "optimizer": 0 if work.offloads else 2 * trained * moved}
    if work.reference:
        held["reference"] = shape.parameters * stored
    gradients = {"gradients": trained * moved}
    training = held | (gradients if work.accumulates else {})

    # Autocast converts each weight once in a forward pass, and keeps it for the backward pass.
    converted = shape.in_products * compute if compute < stored else 0
    per_block = work.tokens * _block_bytes(shape, stored, compute)
    kept = work.tokens * shape.hidden * stored * shape.layers
    saved = kept + per_block if model.gradient_checkpointing else per_block * shape.layers
    # Of the final norm.
    at_loss = (kept if model.gradient_checkpointing else saved) + work.tokens * shape.hidden * (
        4 + stored + compute
    )
    within_block = work.tokens * (2 * shape.intermediate * compute + 3 * shape.hidden * 4)
    cache = work.generated * model.max_seq_length * cache_bytes_per_token(shape, model)
    return {
        "generation": {**held, "cache": cache, "logits": 2 * work.generated * shape.vocab * 4},
        "loss": {
            **training,
            "activations": at_loss + converted,
            "logits": _logits_bytes(shape, work, stored, embedding),
        },
        "backward": {
            **training,
            "activations": saved + within_block
            + (converted // shape.layers if model.gradient_checkpointing else converted),
            "output layer": embedding,
        },
        "update": {**held, **gradients, "output layer": embedding},
    }  # fmt: skip


def _block_bytes(shape: Shape, stored: int, compute: int) -> int:
    query, key = shape.query, shape.key
    copies = 2 if compute == stored else 5
    normed = (4 + compute) * (query + key) if shape.qk_norm else 0
    products = compute * (2 * query + 2 * key + 4 * shape.intermediate)
    return shape.hidden * (2 * (4 + stored) + compute * copies) + products + normed


def _logits_bytes(shape: Shape, work: Workload, stored: int, embedding: int) -> int:
    """Of the output layer's forward and backward pass."""
    if work.loss == "whole":  # logits, and three of their size in the backward pass
        return 4 * work.scored * shape.vocab * 4
    if work.loss == "fused":  # two buffers, or one and the weight's gradient
        chunk = min(CHUNK_NUMEL, work.scored * shape.vocab) * 4
        return chunk + max(chunk, embedding)
    # A chunk's logits, their log-softmax and two more for its entropy; hidden states in two orders.
    chunk = min(work.scored, SFT_CHUNK) * shape.vocab * 4
    return 4 * chunk + 2 * work.tokens * shape.hidden * stored + embedding


def cache_bytes_per_token(shape: Shape, model: Model) -> int:
    """Keys and values of one token."""
    compute = 2 if model.mixed_precision == "bf16" else BYTES[model.dtype]
    return shape.layers * 2 * shape.key * compute
