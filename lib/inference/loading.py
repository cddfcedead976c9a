"""From a model's folder to a `TextGenerator`."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedModel

from lib.engines.policy import is_adapter, load_merged, load_tokenizer
from lib.errors import UserError
from lib.inference.exported import base_of, find_format, find_system
from lib.inference.generator import TextGenerator


def load_generator(folder: Path, *, device: str, batch_size: int) -> TextGenerator:
    """A `TextGenerator` of the model in `folder`; see `build_text_generator`."""
    chosen = _device(device)
    try:
        tokenizer = load_tokenizer(folder)
        model = _load(folder).to(chosen)
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{folder} cannot be loaded as a model: {reason}") from error
    if tokenizer.chat_template is None:
        raise UserError(
            f"{folder} has no chat template, so nothing says how to ask it; "
            "expected an export, which brings chat_template.jinja"
        )
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    known = find_format(folder)
    return TextGenerator(
        model,
        tokenizer,
        prompt_format=known,
        stop_strings=model.generation_config.stop_strings or (known.stop_strings if known else ()),
        system=find_system(folder),
        batch_size=batch_size,
    )


def _load(folder: Path) -> PreTrainedModel:
    """The model in the precision that it was saved in, an adapter folded in."""
    base = base_of(folder)
    saved = AutoConfig.from_pretrained(base if is_adapter(folder) else folder).dtype
    dtype = str(saved or torch.float32).removeprefix("torch.")
    return load_merged(folder, base=base, dtype=dtype, attention="sdpa")


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"no device `{name}` here ({reason}); try auto or cpu") from error
    return torch.device(name)
