"""How large a model is, from nothing but its config.json: neither weights nor torch are needed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML

from lib.artifacts import read_json
from lib.errors import UserError
from lib.params.model import Model

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

FACTS = YAML(typ="safe").load(Path(__file__).with_name("facts.yaml"))
"""Row counts, statements of the source systems, shapes of the presets' models."""

ARCHITECTURES = ("qwen2", "qwen3", "llama")


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
        return (
            embeddings
            + self.in_products
            + self.num_hidden_layers * (bias + norms)
            + self.hidden_size
        )

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
