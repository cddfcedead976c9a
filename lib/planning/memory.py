"""The shape of a model, and what a training phase of it holds in memory at its peak.

A shape is read from nothing but a config.json: neither weights nor torch are needed.

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML

from lib.artifacts import read_json
from lib.core.errors import UserError
from lib.engines.registry import VLLM_SHARE
from lib.export import BATCH, MOST_TOKENS
from lib.objectives import CHUNK_NUMEL, LARGE
from lib.params import Params
from lib.params.model import Model

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

FACTS = YAML(typ="safe").load(Path(__file__).with_name("facts.yaml"))
"""Row counts, statements of the source systems, shapes of the presets' models."""

ARCHITECTURES = ("qwen2", "qwen3", "llama")

SFT_CHUNK = 256
"""Tokens of a chunk of TRL's `chunked_nll` (trl 1.14)."""


class Shape(BaseModel, frozen=True):
    """A decoder of Qwen's or Llama's kind: gated MLP, grouped-query attention, RMS norms.

    The fields are those of a config.json, which has others too.
    """

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool = False

    @property
    def query(self) -> int:
        """Width of the queries."""
        return self.num_attention_heads * self.head_dim

    @property
    def key(self) -> int:
        """Width of the keys, and of the values."""
        return self.num_key_value_heads * self.head_dim

    @property
    def normed(self) -> int:
        """Width of the queries and keys that have a norm per head (Qwen3)."""
        return self.query + self.key if self.model_type == "qwen3" else 0

    @property
    def parameters(self) -> int:
        """All weights."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        bias = self.query + 2 * self.key if self.model_type == "qwen2" else 0
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.normed else 0)
        blocks = self.in_products + self.num_hidden_layers * (bias + norms)
        return embeddings + blocks + self.hidden_size

    @property
    def in_products(self) -> int:
        """Weights of the blocks' linear layers."""
        return self.num_hidden_layers * sum(a * b for a, b in self.linear_layers.values())

    @property
    def linear_layers(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of a block's linear layers, by the names that LoRA targets."""
        hidden, inner = self.hidden_size, self.intermediate_size
        return {
            "q_proj": (hidden, self.query),
            "k_proj": (hidden, self.key),
            "v_proj": (hidden, self.key),
            "o_proj": (self.query, hidden),
            "gate_proj": (hidden, inner),
            "up_proj": (hidden, inner),
            "down_proj": (inner, hidden),
        }

    def trained(self, model: Model) -> int:
        """Weights that training moves: with LoRA, rank × (inputs + outputs) of each layer."""
        lora = model.lora
        adapted = [sum(self.linear_layers.get(name, ())) for name in lora.target_modules]
        return self.num_hidden_layers * lora.rank * sum(adapted) if lora.rank else self.parameters


def shape_of(model: Model) -> Shape | None:
    """The shape of params' base model; None where no config.json of it is at hand.

    Raises:
        UserError: its config.json is damaged.
    """
    if not model.name:
        tiny = model.tiny
        heads = {"num_attention_heads": tiny.num_heads, "num_key_value_heads": tiny.num_kv_heads}
        sizes = {"num_hidden_layers": tiny.num_layers, **heads, **tiny.model_dump()}
        return Shape(model_type="qwen3", tie_word_embeddings=True, **sizes)
    if model.name in FACTS["models"]:
        return shape_in(FACTS["models"][model.name])
    # Only here: the Hub's client takes a quarter of a second to import.
    from lib.artifacts.hub import is_on_hub, model_repository

    on_hub = is_on_hub(model.name, model.revision)
    folder = model_repository(model.name, model.revision).folder if on_hub else Path(model.name)
    config = folder / "config.json"
    try:
        return shape_in(read_json(config)) if config.is_file() else None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise UserError(
            f"model.name: {config} is no model's configuration ({type(error).__name__}: {error}); "
            "copy or fetch it again"
        ) from error


def shape_in(config: Mapping[str, Any]) -> Shape | None:
    """The shape that a config.json states; None for an architecture of another kind."""
    if config.get("model_type") not in ARCHITECTURES:
        return None
    heads = config["num_attention_heads"]
    usual = {"num_key_value_heads": heads, "head_dim": config["hidden_size"] // heads}
    return Shape(**usual | {key: value for key, value in config.items() if value is not None})


def section_of(params: Params, kind: str) -> Any:
    """The section that sets the batches of a phase: `sft`, `grpo`, `dpo`, or `pairs`, the sampling
    that DPO learns from."""
    return getattr(params.dpo if kind == "pairs" else params, kind)


def batch_of(params: Params, kind: str) -> int:
    """Rows of one optimiser step: examples, completions or pairs; sequences of one batch."""
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
        return [(rollout.engine, VLLM_SHARE, batch)]
    samplers: list[tuple[Any, int]] = [(rollout, batch)] if kind == "grpo" else []
    if section_of(params, kind).eval_steps:
        samplers.append((validation, validation.batch_size))
    here = not rollout.device  # or else vLLM is on another GPU
    return [(each.engine, here * each.gpu_memory_utilization, size) for each, size in samplers]


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


def export_memory(params: Params, shape: Shape) -> dict[str, int]:
    """Bytes of an export at its peak: one model in float32, which generates."""
    model, evaluate = params.model, params.evaluate
    adapter = shape.trained(model) if model.lora.rank else 0
    new = min(evaluate.max_new_tokens, MOST_TOKENS)
    longest = model.max_seq_length - evaluate.max_new_tokens + new
    exact = model.model_copy(update={"dtype": "float32", "mixed_precision": "fp32"})
    return {
        "weights": 4 * (shape.parameters + adapter),
        "cache": BATCH * longest * cache_bytes_per_token(shape, exact),
        "logits": 2 * BATCH * shape.vocab_size * 4,
    }


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
