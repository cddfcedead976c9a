"""How large a model is, from nothing but its shape: neither weights nor torch are needed."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lib.params.model import HUB_ID, Model

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """A decoder of Qwen's or Llama's kind: gated MLP, grouped-query attention, RMS norms.

    Attributes:
        hidden: width of the residual stream.
        intermediate: width of the MLP.
        layers: blocks.
        heads: query heads.
        kv_heads: key-value heads.
        head_dim: width of a head.
        vocab: rows of the embeddings.
        tied: input and output embeddings are one table.
        qkv_bias: queries, keys and values have a bias (Qwen2).
        qk_norm: queries and keys are normalised per head (Qwen3).
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def parameters(self) -> int:
        """All weights."""
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return embeddings + self.layers * self._block + self.hidden

    @property
    def _block(self) -> int:
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        linear = sum(inputs * outputs for inputs, outputs in self.linear_layers.values())
        bias = query + 2 * key if self.qkv_bias else 0
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        return linear + bias + norms

    @property
    def linear_layers(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of a block's linear layers, by the names that LoRA targets."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q_proj": (self.hidden, query),
            "k_proj": (self.hidden, key),
            "v_proj": (self.hidden, key),
            "o_proj": (query, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    def adapter_parameters(self, *, rank: int, targets: tuple[str, ...]) -> int:
        """Weights of LoRA adapters: rank × (inputs + outputs) for each layer that has one."""
        adapted = [self.linear_layers[name] for name in targets if name in self.linear_layers]
        return self.layers * rank * sum(inputs + outputs for inputs, outputs in adapted)


_QWEN25_15B = Shape(
    hidden=1536,
    intermediate=8960,
    layers=28,
    heads=12,
    kv_heads=2,
    head_dim=128,
    vocab=151936,
    qkv_bias=True,
)

SHAPES = {
    "unsloth/Qwen3-4B-Base": Shape(
        hidden=2560,
        intermediate=9728,
        layers=36,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab=151936,
        qk_norm=True,
    ),
    "Qwen/Qwen3-0.6B": Shape(
        hidden=1024,
        intermediate=3072,
        layers=28,
        heads=16,
        kv_heads=8,
        head_dim=128,
        vocab=151936,
        qk_norm=True,
    ),
    "Qwen/Qwen2.5-0.5B-Instruct": Shape(
        hidden=896,
        intermediate=4864,
        layers=24,
        heads=14,
        kv_heads=2,
        head_dim=64,
        vocab=151936,
        qkv_bias=True,
    ),
    "Qwen/Qwen2.5-1.5B-Instruct": _QWEN25_15B,
    "Qwen/Qwen2.5-Math-1.5B": _QWEN25_15B,
    "Qwen/Qwen2.5-Math-1.5B-Instruct": _QWEN25_15B,
    "meta-llama/Llama-3.2-1B-Instruct": Shape(
        hidden=2048,
        intermediate=8192,
        layers=16,
        heads=32,
        kv_heads=8,
        head_dim=64,
        vocab=128256,
    ),
}
"""Shapes of the presets' models, as their config.json on the Hub states them."""


def shape_of(model: Model) -> Shape | None:
    """The shape of params' base model; None for a Hub model that is not in the table."""
    if not model.name:
        tiny = model.tiny
        return Shape(
            hidden=tiny.hidden_size,
            intermediate=tiny.intermediate_size,
            layers=tiny.num_layers,
            heads=tiny.num_heads,
            kv_heads=tiny.num_kv_heads,
            head_dim=tiny.head_dim,
            vocab=tiny.vocab_size,
            qk_norm=True,
        )
    config = Path(model.name) / "config.json"
    if config.is_file():
        return shape_in(json.loads(config.read_text(encoding="utf-8")))
    return SHAPES.get(model.name) if HUB_ID.fullmatch(model.name) else None


def shape_in(config: Mapping[str, Any]) -> Shape | None:
    """The shape that a config.json states; None for an architecture of another kind."""
    kind = config.get("model_type")
    if kind not in {"qwen2", "qwen3", "llama"}:
        return None
    heads = config["num_attention_heads"]
    return Shape(
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocab=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings")),
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
    )
