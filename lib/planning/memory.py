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

import math
from typing import Any

from lib.params import Params
from lib.params.model import Model
from lib.planning.sizes import BYTES, Shape

CHUNK_NUMEL = 2**25
"""Logits that `lib.objectives.logprobs` holds at a time; a plan imports no torch."""

LARGE = 2**26
"""Logits of a micro-batch from which on `lib.trainers.grpo.scoring` fuses."""

SFT_CHUNK = 256
"""Tokens of a chunk of TRL's `chunked_nll` (trl 1.14)."""

VLLM_ALONE = 0.9
"""Share of a GPU for a vLLM that no policy is beside (`lib.engines.open.open_engine`)."""


def section_of(params: Params, kind: str) -> Any:
    """The section that sets the batches of a phase: `sft`, `grpo`, `dpo`, or `pairs`, the sampling
    that DPO learns from."""
    return params.dpo.pairs if kind == "pairs" else getattr(params, kind)


def batch_of(params: Params, kind: str) -> int:
    """Rows of one optimiser step: examples, completions or pairs; sequences of one batch."""
    if kind == "grpo":
        return params.grpo.prompts_per_step * params.grpo.group_size
    batch: int = section_of(params, kind).batch_size
    return batch


def longest_row(params: Params, kind: str) -> int:
    """Tokens of the longest row, prompt and completion; packed rows are all as long as allowed."""
    longest, cut = params.model.max_seq_length, params.prepare.lengths.max_tokens
    return min(cut, longest) if cut and kind == "sft" and not params.sft.packing else longest


def generators(params: Params, kind: str) -> list[tuple[str, float, int]]:
    """What generates in a phase: engines, vLLM's share of the policy's GPU, sequences at a time.

    Rollouts are first: where GRPO's are vLLM's, its validation is on the same engine.
    """
    rollout, validation, batch = params.rollout, params.validation, batch_of(params, kind)
    if kind == "pairs":
        return [(rollout.engine, VLLM_ALONE, batch)]
    here = not rollout.device  # or else vLLM is on another GPU
    engines = []
    if kind == "grpo":
        engines.append((rollout.engine, here * rollout.gpu_memory_utilization, batch))
    if section_of(params, kind).eval_steps:
        share = here * validation.gpu_memory_utilization
        engines.append((validation.engine, share, validation.batch_size))
    return engines


def memory_at_peak(params: Params, kind: str, shape: Shape) -> dict[str, int]:
    """Bytes by what they hold, at the largest of the moments; vLLM's share is not among them."""
    model, section = params.model, section_of(params, kind)
    stored, compute = BYTES[model.dtype], BYTES[model.inference_dtype]
    # Sequences that the policy itself generates at a time.
    generated = [batch for engine, _, batch in generators(params, kind) if engine == "transformers"]
    batch = max(generated, default=0)
    generation = {
        "cache": batch * model.max_seq_length * cache_bytes_per_token(shape, model),
        "logits": 2 * batch * shape.vocab_size * 4,
    }
    if kind == "pairs":  # a merged policy that nothing trains, where no vLLM holds it
        return {"weights": shape.parameters * compute, **generation} if batch else {}
    full, trained = not model.lora.rank, shape.trained(model)
    # peft keeps adapters in float32, whatever the weights below them are.
    moved = stored if full else 4
    weights = shape.parameters * stored
    on_device = section.optimizer != "memory_efficient_adamw"
    held = {
        "weights": weights if full else weights + trained * moved,
        "optimizer": 2 * trained * moved * on_device,
    }
    if full and kind != "sft" and section.beta:
        held["reference"] = weights
    gradients = {"gradients": trained * moved}
    accumulates = batch_of(params, kind) > section.micro_batch_size
    training = {**held, **gradients} if accumulates else held
    output_layer = shape.vocab_size * shape.hidden_size * moved if full else 0

    tokens, scored = forward_pass(params, kind)
    residual = tokens * shape.hidden_size
    # Autocast converts each weight once in a forward pass, and keeps it for the backward pass.
    converted = shape.in_products * compute if compute < stored else 0
    block = tokens * _block_bytes(shape, stored, compute)
    layers, recomputed, of_block = shape.num_hidden_layers, 0, converted
    kept = block * layers
    if model.gradient_checkpointing:
        kept, recomputed, of_block = residual * stored * layers, block, converted // layers
    final_norm = residual * (4 + stored + compute)
    within_block = tokens * 2 * shape.intermediate_size * compute + residual * 3 * 4
    backward = kept + recomputed + within_block + of_block

    logits = 4 * scored * shape.vocab_size * 4  # and three of their size in the backward pass
    if kind == "sft":
        # A chunk's logits, their log-softmax and two more for its entropy; hidden states in two
        # orders.
        logits = 4 * min(scored, SFT_CHUNK) * shape.vocab_size * 4
        logits += 2 * residual * stored + output_layer
    elif kind == "grpo" and scored * shape.vocab_size > LARGE and model.backend != "unsloth":
        # Two buffers, or one and the weight's gradient.
        chunk = min(CHUNK_NUMEL, scored * shape.vocab_size) * 4
        logits = chunk + max(chunk, output_layer)
    moments = (
        {**held, **generation},
        {**training, "activations": kept + final_norm + converted, "logits": logits},
        {**training, "activations": backward, "output layer": output_layer},
        {**held, **gradients, "output layer": output_layer},
    )
    return max(moments, key=lambda parts: sum(parts.values()))


def forward_pass(params: Params, kind: str) -> tuple[int, int]:
    """Positions of the largest micro-batch, all rows as long as params allow, and of them those
    whose next token is scored."""
    rows, longest = section_of(params, kind).micro_batch_size, longest_row(params, kind)
    if kind != "grpo":  # of DPO, both completions of each pair, each behind its prompt
        tokens = rows * longest * (2 if kind == "dpo" else 1)
        return tokens, tokens
    new = params.rollout.max_new_tokens
    # Without checkpointing a prompt is computed once for all of its completions.
    shared = 1 if params.model.gradient_checkpointing else params.grpo.group_size
    scored = rows * (new + 1)
    return scored + math.ceil(rows / shared) * (longest - new), scored


def _block_bytes(shape: Shape, stored: int, compute: int) -> int:
    copies = 2 if compute == stored else 5
    products = compute * (2 * shape.query + 2 * shape.key + 4 * shape.intermediate_size)
    norms = (4 + compute) * shape.normed
    return shape.hidden_size * (2 * (4 + stored) + compute * copies) + products + norms


def cache_bytes_per_token(shape: Shape, model: Model) -> int:
    """Keys and values of one token."""
    return shape.num_hidden_layers * 2 * shape.key * BYTES[model.inference_dtype]
