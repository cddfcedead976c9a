"""Whether a folder holds a whole model, by names, sizes and headers: no torch, and no second."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""What PEFT, TRL and Unsloth save a LoRA adapter as."""

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""One of these is what every tokenizer keeps its tokens in."""


def model_faults(folder: Path) -> Iterator[str]:
    """What a folder lacks that should hold a model and its tokenizer."""
    if not (folder / "config.json").is_file():
        yield f"{folder} holds no model: expected a config.json in it"
        return
    if not any((folder / name).is_file() for name in TOKENIZERS):
        yield f"{folder} has no tokenizer ({TOKENIZERS[0]}); save it there with the model"
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        yield f"{folder} has no *.safetensors; other weights can run code"
    for path in weights:
        if fault := safetensors_fault(path):
            yield f"{path}: {fault}; copy it again"


def adapter_faults(folder: Path, *, rank: int, alpha: int) -> Iterator[str]:
    """What a folder lacks that should hold a LoRA adapter of that rank and alpha."""
    config, weights = (folder / name for name in ADAPTER_FILES)
    if not (config.is_file() and weights.is_file()):
        yield f"{folder} holds no LoRA adapter: expected {' and '.join(ADAPTER_FILES)} in it"
        return
    if fault := safetensors_fault(weights):
        yield f"{weights}: {fault}; copy it again"
    saved = json.loads(config.read_text(encoding="utf-8"))
    for key, name, wanted in (("rank", "r", rank), ("alpha", "lora_alpha", alpha)):
        if saved.get(name) != wanted:
            yield f"{folder} has {name} {saved.get(name)}; set model.lora.{key} to it, not {wanted}"


def safetensors_fault(path: Path) -> str:
    """Why a safetensors file is not whole, by its header and size; '' for one that is."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if 8 + length > size:
            return f"truncated, {size} bytes"
        try:
            header = json.loads(file.read(length))
        except ValueError:
            return "not a safetensors file"
    header.pop("__metadata__", None)
    end = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    return "" if end == size else f"truncated, {size} of {end} bytes"
