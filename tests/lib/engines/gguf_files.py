"""Tiny GGUF files, written as llama.cpp's converter does."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.lib.engines.hub_models import write_model

TEMPLATE = "{% for message in messages %}<{{ message['content'] }}>{% endfor %}"
CONTROL, NORMAL = 3, 1

NAMES = {"embed_tokens": "token_embd", "norm": "output_norm"}
LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_gguf(file: Path, *, architecture: str = "qwen2") -> dict[str, torch.Tensor]:
    """Write a tiny Qwen2, its matrices in blocks (Q8_0); returns the weights that these hold."""
    source = write_model(file.parent / "source", architecture="qwen2")
    model = AutoModelForCausalLM.from_pretrained(source)
    tokenizer = AutoTokenizer.from_pretrained(source)
    config, vocabulary = model.config, tokenizer.get_vocab()
    tokens = {token_id: token for token, token_id in vocabulary.items()}
    special = set(tokenizer.all_special_ids)
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_context_length(512)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    padded = range(config.vocab_size)
    writer.add_token_list([tokens.get(number, f"[unused{number}]") for number in padded])
    writer.add_token_types([CONTROL if number in special else NORMAL for number in padded])
    merges = json.loads((source / "tokenizer.json").read_text())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(tokenizer.pad_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_chat_template(TEMPLATE)
    held: dict[str, torch.Tensor] = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        block = (
            gguf.GGMLQuantizationType.F32 if weight.ndim == 1 else gguf.GGMLQuantizationType.Q8_0
        )
        packed = gguf.quantize(weight.numpy(), block)
        writer.add_tensor(_gguf_name(name), packed, raw_dtype=block)
        held[name] = torch.from_numpy(np.array(gguf.dequantize(packed, block)))
    for write in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{write}_to_file")()
    writer.close()
    return held


def _gguf_name(name: str) -> Any:
    stem, _, kind = name.removeprefix("model.").rpartition(".")
    if stem.startswith("layers."):
        _, number, part = stem.split(".", 2)
        return f"blk.{number}.{LAYER_NAMES[part]}.{kind}"
    return f"{NAMES[stem]}.{kind}"
