"""The forms in which a model is written, and how each is loaded from disk again."""

import shutil
from pathlib import Path

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from lib.artifacts import read_json, write_json
from lib.engines.policy import ADAPTER, load_merged
from lib.export.gguf_file import load_gguf

ADAPTER_FOLDER = "adapter"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
GGUF_FOLDER = "gguf"


def load_form(
    kind: str, folder: Path, *, base: Path, dtype: str, attention: str
) -> PreTrainedModel | PeftModel:
    """One form of the export in `folder`: "merged", "adapter" (on top of `base`) or "gguf"."""
    if kind == "adapter":
        full = load_merged(base, base=base, dtype=dtype, attention=attention)
        return PeftModel.from_pretrained(full, folder / ADAPTER_FOLDER)
    if kind == "gguf":
        return load_gguf(gguf_path(folder), folder, dtype=dtype, attention=attention)
    return load_merged(folder, base=base, dtype=dtype, attention=attention)


def write_adapter(checkpoint: Path, folder: Path) -> None:
    """Copy an adapter without what training left beside it (optimiser, tokenizer)."""
    to = folder / ADAPTER_FOLDER
    to.mkdir()
    write_json(to / ADAPTER, {**read_json(checkpoint / ADAPTER), "inference_mode": True})
    shutil.copyfile(checkpoint / ADAPTER_WEIGHTS, to / ADAPTER_WEIGHTS)


def gguf_path(folder: Path) -> Path:
    """The one GGUF file of an export.

    Raises:
        ValueError: there is none, or more than one.
    """
    (path,) = (folder / GGUF_FOLDER).glob("*.gguf")
    return path


def device_here() -> torch.device:
    """A GPU where there is one: verifying generates as much as a small evaluation."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
