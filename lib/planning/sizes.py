"""How large a model is, from nothing but its shape: neither weights nor torch are needed."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from lib.params.model import HUB_ID, Model

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

FACTS = YAML(typ="safe").load(Path(__file__).with_name("facts.yaml"))
"""Row counts, statements of the source systems, shapes of the presets' models."""


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
    def query(self) -> int:
        """Width of the queries."""
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        """Width of the keys, and of the values."""
        return self.kv_heads * self.head_dim

    @property
    def parameters(self) -> int:
        """All weights."""
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        bias = (self.query + 2 * self.key) * self.qkv_bias
        norms = 2 * self.hidden + 2 * self.head_dim * self.qk_norm
        return embeddings + self.in_products + self.layers * (bias + norms) + self.hidden

    @property
    def in_products(self) -> int:
        """Weights of the blocks' linear layers."""
        return self.layers * sum(a * b for a, b in self.linear_layers.values())

    @property
    def linear_layers(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of a block's linear layers, by the names that LoRA targets."""
        return {
            "q_proj": (self.hidden, self.query),
            "k_proj": (self.hidden, self.key),
            "v_proj": (self.hidden, self.key),
            "o_proj": (self.query, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    def trained(self, model: Model) -> int:
        """Weights that training moves: with LoRA, rank × (inputs + outputs) of each layer."""
        lora = model.lora
        adapted = [sum(self.linear_layers.get(name, ())) for name in lora.target_modules]
        return self.layers * lora.rank * sum(adapted) if lora.rank else self.parameters


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


SHAPES = {name: shape for name, config in FACTS["models"].items() if (shape := shape_in(config))}
