"""Read what others wrote: transformers' files without their code, and GGUF files."""

import math
import shutil
import struct
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.integrations.gguf import read_gguf_metadata

from lib.artifacts import read_json, replacing, write_json
from lib.core.errors import UserError
from lib.models.files import misfit, tensor_shapes
from lib.models.hub import dequantized_folder
from lib.models.untrusted import check_folder

GGUF_TOKENS = "tokenizer.ggml.tokens"
"""Key of the vocabulary in a GGUF file's metadata: all tokens, by id."""

GGUF_SPECIAL = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
"""transformers' name of a special token → its name in a GGUF file."""

GGUF_FAULTS = (ImportError, LookupError, OSError, RuntimeError, ValueError, struct.error)
"""Exceptions of transformers and gguf for a file that is damaged or of an unknown architecture."""

DAMAGED = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, OSError),
    *(RecursionError, RuntimeError, StrictDataclassError, TypeError, ValueError),
)
"""Exceptions of transformers and torch for JSON files of an unexpected form, or other weights."""


def load_pretrained(auto: Any, folder: Path, **options: Any) -> Any:
    """Return `auto.from_pretrained(folder)` without running code in the folder.

    Args:
        auto: one of transformers' Auto classes.
        options: further arguments of `from_pretrained`.

    Raises:
        UserError: the model needs code of its own, or its files do not fit together.
    """
    if "gguf_file" not in options:
        check_folder(folder)
    try:
        if auto is AutoModelForCausalLM and "gguf_file" not in options:
            return _load_model(auto, folder, **options)
        # By default transformers asks on standard input for permission to run a model's code, and a
        # user's piped input, such as questions for the model, may begin with "y".
        return auto.from_pretrained(folder, trust_remote_code=False, **options)
    # tokenizers' Rust code raises PanicException, which is no Exception.
    except BaseException as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        known = isinstance(error, DAMAGED) or "PanicException" in text
        # Callers explain these two themselves: GGUF files, and a missing attention kernel.
        if not known or "gguf_file" in options or "flash" in text:
            raise
        fault = f"cannot be loaded as a model: {text[:300]}"
        if "trust_remote_code" in text:
            fault = (
                "brings code of its own (auto_map in its JSON files), which is never run; "
                "use a model whose architecture transformers has"
            )
        elif "mismatched_sizes" in text:
            fault = "cannot be loaded as a model: config.json and weights differ in their shapes"
        raise UserError(f"{folder} {fault}") from error


def _load_model(auto: Any, folder: Path, **options: Any) -> PreTrainedModel:
    """Load a model whose weights are all there, with the attention in `options`.

    Raises:
        UserError: tensors are missing, unexpected or of other shapes.
    """
    config = load_pretrained(AutoConfig, folder)
    # In a config it would count more than the argument, and a kernel is named there.
    config._attn_implementation = config._experts_implementation = None
    # The tensors are counted before memory is taken for them. On the meta device nothing is
    # computed, and the random states stay.
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        parameters = auto.from_config(config, trust_remote_code=False).parameters()
    num_needed = sum(weight.numel() for weight in parameters)
    shapes = [s for file in folder.glob("*.safetensors") for s in tensor_shapes(file).values()]
    if num_needed > (num_held := sum(map(math.prod, shapes))):
        raise UserError(
            f"{folder}: config.json names a model of {num_needed} parameters, and the weights' "
            f"files hold {num_held}"
        )
    model, info = auto.from_pretrained(
        folder,
        config=config,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
        **options,
    )
    if info["missing_keys"] or info["unexpected_keys"]:
        raise UserError(f"{folder} {misfit(info['missing_keys'], info['unexpected_keys'])}")
    return model


def load_tokenizer(checkpoint: Path) -> PreTrainedTokenizerBase:
    """Load a checkpoint's tokenizer with padding on the left, as generation needs it.

    Special tokens stay whole, whatever the tokenizer's config says: the end token is written as
    text and must be learned as one.
    """
    return load_pretrained(
        AutoTokenizer, checkpoint, padding_side="left", split_special_tokens=False
    )


def dequantized(file: Path) -> Path:
    """Convert a GGUF file to a float32 model with safetensors, once; return the model's folder.

    The weights are the file's rounded values in float32; the original ones are lost.
    Transformers (5.17) reads such a file but refuses to save the model, and takes the special
    tokens from the architecture's defaults (SmolLM2: the EOS of another model).

    Raises:
        UserError: transformers cannot read the file.
    """
    folder = dequantized_folder(file)
    if not folder.is_dir():
        with replacing(folder) as partial:
            try:
                _dequantize(file, partial)
            except GGUF_FAULTS as error:
                reason = str(error).strip().partition("\n")[0] or "it is damaged"
                raise UserError(
                    f"model.name: transformers cannot read {file} ({type(error).__name__}: "
                    f"{reason}); name a whole GGUF file of an architecture that it knows"
                ) from error
    return folder


def _dequantize(file: Path, folder: Path) -> None:
    metadata, _ = read_gguf_metadata(str(file), {GGUF_TOKENS})
    source: dict[str, Any] = {"folder": file.parent, "gguf_file": file.name}
    model = load_pretrained(AutoModelForCausalLM, **source, dtype=torch.float32)
    model.hf_quantizer = None
    del model.config.quantization_config
    tokenizer = load_pretrained(AutoTokenizer, **source)
    # transformers has set the architecture's default special tokens; the file's replace them. For
    # example, `eos_token` becomes the token with the id "tokenizer.ggml.eos_token_id".
    for role, name in GGUF_SPECIAL.items():
        if (token_id := metadata.get(f"tokenizer.ggml.{name}_token_id")) is not None:
            setattr(tokenizer, f"{role}_token", metadata[GGUF_TOKENS][token_id])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # Decoding must not change spaces. Written here, since the tokenizer does not save this setting.
    config = folder / "tokenizer_config.json"
    write_json(config, {**read_json(config), "clean_up_tokenization_spaces": False})
    for licence in file.parent.glob("LICENSE*"):
        if not licence.is_symlink():
            shutil.copyfile(licence, folder / licence.name)
