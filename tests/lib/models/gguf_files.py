"""Tiny GGUF files, written by the export."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lib.export import gguf as export
from tests.lib.models.hub_models import write_model

TEMPLATE = "{% for message in messages %}<{{ message['content'] }}>{% endfor %}"


def write_gguf(file: Path) -> dict[str, torch.Tensor]:
    """Write a tiny Qwen2, its matrices in blocks (Q8_0); return the dequantised weights."""
    source = write_model(file.parent / "source", architecture="qwen2")
    model = AutoModelForCausalLM.from_pretrained(source)
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.bos_token, tokenizer.chat_template = tokenizer.pad_token, TEMPLATE
    tokenizer.save_pretrained(source)
    with pytest.MonkeyPatch.context() as patch:
        # The tokenizer splits texts unlike any known family.
        patch.setattr(export, "split_name", lambda tokenizer: "qwen2")
        end_ids = {tokenizer.eos_token_id}
        export.write_gguf(model, tokenizer, source, kind="q8_0", end_ids=end_ids).rename(file)
    held = {}
    for name, weight in model.state_dict().items():
        kind = gguf.GGMLQuantizationType.F32 if weight.ndim == 1 else gguf.GGMLQuantizationType.Q8_0
        blocks = gguf.quantize(weight.numpy(), kind)
        held[name] = torch.from_numpy(np.array(gguf.dequantize(blocks, kind)))
    return held
