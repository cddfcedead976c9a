"""A GGUF file as a model in float32, written once.

The weights are the file's blocks multiplied out: what the file holds, not what it was made from.
Transformers (5.17) reads such a file but refuses to save the model, and takes the special tokens
from the architecture's defaults (SmolLM2: the EOS of another model) in place of the file's.
"""

import shutil
import struct
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.gguf import read_gguf_metadata

from lib.artifacts import read_json, replacing, write_json
from lib.artifacts.hub import dequantized_folder
from lib.core.errors import UserError
from lib.engines.pretrained import load_pretrained

TOKENS = "tokenizer.ggml.tokens"

SPECIAL = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
"""What transformers and a GGUF file call a special token."""

UNREADABLE = (ImportError, LookupError, OSError, RuntimeError, ValueError, struct.error)
"""What transformers and gguf raise at files that are damaged or of an unknown architecture."""


def dequantized(file: Path) -> Path:
    """Return the folder that holds the model of a GGUF file.

    Raises:
        UserError: transformers cannot read the file.
    """
    folder = dequantized_folder(file)
    if not folder.is_dir():
        with replacing(folder) as partial:
            try:
                _dequantize(file, partial)
            except UNREADABLE as error:
                reason = str(error).strip().partition("\n")[0] or "it is damaged"
                raise UserError(
                    f"model.name: transformers cannot read {file} ({type(error).__name__}: "
                    f"{reason}); name a whole GGUF file of an architecture that it knows"
                ) from error
    return folder


def _dequantize(file: Path, folder: Path) -> None:
    metadata, _ = read_gguf_metadata(str(file), {TOKENS})
    source: dict[str, Any] = {"folder": file.parent, "gguf_file": file.name}
    model = load_pretrained(AutoModelForCausalLM, **source, dtype=torch.float32)
    # All weights are plain float32 here; these two only keep `save_pretrained` from writing them.
    model.hf_quantizer = None
    del model.config.quantization_config
    tokenizer = load_pretrained(AutoTokenizer, **source)
    for role, name in SPECIAL.items():
        if (token_id := metadata.get(f"tokenizer.ggml.{name}_token_id")) is not None:
            setattr(tokenizer, f"{role}_token", metadata[TOKENS][token_id])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # So that decoding gives back the text of the tokens; the tokenizer's attribute is not saved.
    config = folder / "tokenizer_config.json"
    write_json(config, {**read_json(config), "clean_up_tokenization_spaces": False})
    for licence in file.parent.glob("LICENSE*"):
        shutil.copyfile(licence, folder / licence.name)
