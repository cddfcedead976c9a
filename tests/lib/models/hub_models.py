"""Tiny random models in the Hub's layout, one for each architecture of the presets."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lib.models.tiny import train_tokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"

ARCHITECTURES = ("qwen3", "qwen2", "llama")


def random_model(architecture: str, **settings: Any) -> PreTrainedModel:
    """Build a model with weights large enough that its completions vary."""
    config = AutoConfig.for_model(architecture, **{"initializer_range": 0.4, **settings})
    return AutoModelForCausalLM.from_config(config)


def same_weights(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a == b and torch.equal(v, w) for (a, v), (b, w) in pairs)


def learned_positions(**changes: int) -> PreTrainedModel:
    shape = {"vocab_size": 800, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return random_model("gpt2", **shape | changes)


def two_ropes(*, switch: int, **changes: int) -> PreTrainedModel:
    """Build a model with other frequencies beyond the position of the switch."""
    first = {"original_max_position_embeddings": switch}
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "factor": 4.0}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, **factors, **first}
    shape = {"vocab_size": 800, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "pad_token_id": 0, "max_position_embeddings": 4 * switch}
    return random_model("phi3", **shape | heads | changes, **first, rope_parameters=rope)


def write_model(
    folder: Path,
    *,
    architecture: str,
    texts: Iterable[str] = (),
    chat_template: str = "{{ 'its own' }}",
    turn_tokens: Sequence[str] = (),
) -> Path:
    """Write a random model and a tokenizer without prompt format, as in a Hub snapshot.

    Args:
        turn_tokens: special tokens of the template; the last one is EOS.
    """
    tokenizer = train_tokenizer(
        [*texts, "Tom has 3 apples."], vocab_size=420, marks=(), chat_template=chat_template
    )
    if turn_tokens:
        special = {"additional_special_tokens": [*turn_tokens], "eos_token": turn_tokens[-1]}
        tokenizer.add_special_tokens(special)
    if architecture == "llama":
        tokenizer.add_special_tokens({"bos_token": "<|begin_of_text|>"})
        tokenizer.add_tokens(["<|finetune_right_pad_id|>"], special_tokens=True)
        tokenizer.pad_token = None
    torch.manual_seed(0)
    model = random_model(
        architecture,
        # Real models have more rows than their tokenizer has tokens.
        vocab_size=len(tokenizer) + 2,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=architecture != "llama",
        initializer_range=0.3,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        **({"head_dim": 16} if architecture == "qwen3" else {}),
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_snapshot(cache: Path, *, name: str, commit: str = COMMIT, **model: Any) -> Path:
    """Write a model as a downloaded commit in the Hub's cache; return the snapshot's folder."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    return write_model(repository / "snapshots" / commit, **model)
