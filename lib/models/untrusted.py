"""What a model's folder may hold, checked before a library reads it, without torch.

The files come from strangers. transformers 5.17 imports a kernel, reads pickles or asks the Hub if
some keys of its JSON files say so, builds as many layers as a config names, and follows links.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lib.artifacts import read_json
from lib.core.errors import UserError
from lib.models.files import ADAPTER
from lib.prompts.saved import FORMAT_FILE

IMPLEMENTATIONS = {
    *("eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3"),
    *("grouped_mm", "batched_mm"),
}
"""Values of `_attn_implementation` and its like in a config: transformers' own code. Any other may
name a repository with a kernel to import."""

LOADED = re.compile(r".*(_implementation|_implementation_internal)")

REFUSED = {
    *("quantization_config", "compression_config"),  # packages and kernels of their own
    *("use_kernels", "kernel_config", "backbone", "use_timm_backbone", "use_pretrained_backbone"),
    *("transformers_weights", "fast_tokenizer_files"),  # names of other files
    *("custom_generate", "assistant_model", "compile_config", "heterogeneity_config"),
}
"""Keys that make transformers import, download or open something."""

CONFIGS = (
    *("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("processor_config.json", "preprocessor_config.json", "added_tokens.json"),
    FORMAT_FILE,
)

MAX_NUMBER = 2**31
"""Above any size of a model; lists and buffers of a larger one would take the memory."""

MAX_CONFIG = 16 * 2**20
"""Bytes of a config; parsed, it takes up to 20 times as much memory."""


def check_folder(folder: Path, *, quantized: bool = False) -> None:
    """Refuse a model's folder that would run code, read files elsewhere or fill the memory.

    Args:
        quantized: True for an own conversion, whose config names its quantisation.

    Raises:
        UserError: names the file and the key.
    """
    if (folder / ADAPTER).is_file() and (folder / "config.json").is_file():
        raise UserError(f"{folder}: expected {ADAPTER} or config.json, not both; remove one")
    if (stray := next(strays(folder), None)) is not None:
        raise UserError(f"{stray} is a link out of the model's folder; copy the file itself")
    for name in CONFIGS:
        file = folder / name
        if not file.is_file():
            continue
        if file.stat().st_size > MAX_CONFIG:
            raise UserError(f"{file} has more than {MAX_CONFIG} bytes; copy the model again")
        content = read_json(file, remedy="copy the model again")
        if not isinstance(content, dict):
            raise UserError(f"{file}: expected an object; copy the model again")
        for key, value in _entries(content):
            if (key in REFUSED and value) or (LOADED.fullmatch(key) and not _is_own(value)):
                raise UserError(
                    f"{file}: {key} makes transformers load something else, which is never done; "
                    "remove it"
                )
            if key == "model_max_length" and not isinstance(value, int | float | None):
                raise UserError(f"{file}: model_max_length is {value!r:.80}, expected a number")
            if isinstance(value, int | float) and not -MAX_NUMBER < value < MAX_NUMBER:
                if "max_length" in key or key in ("rope_theta", "theta"):
                    continue
                raise UserError(f"{file}: {key} is {value:g}; expected the size of a model")


def _is_own(value: Any) -> bool:
    """Return True if an implementation is none, transformers' own, or a mapping to those."""
    values = value.values() if isinstance(value, dict) else [value]
    return all(
        each is None or (isinstance(each, str) and each in IMPLEMENTATIONS) for each in values
    )


def _entries(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield each key of nested JSON with its value; an item of a list has its list's key."""
    for key, value in content.items():
        yield key, value
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield from _entries(each)


def strays(folder: Path) -> Iterator[Path]:
    """Yield each link in a folder that leads out of it.

    In the Hub's cache (`snapshots/<commit>`), links lead to the repository's `blobs`.
    """
    root = folder.resolve()
    if root.parent.name == "snapshots":
        root = root.parents[1]
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not path.resolve().is_relative_to(root):
            yield path
