"""A base model from the Hub, a folder or a GGUF file; `prepare` keeps its tokenizer and a pointer.

Weights of several gigabytes are not copied into the pipeline. The pointer, `base.json`, has the
model's name and the hashes of its config, weights and tokenizer, and every later stage finds the
weights by it.
"""

import shutil
import struct
from collections.abc import Iterable
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
from lib.artifacts.hub import (
    DEQUANTIZED,
    WEIGHTS,
    dequantized_folder,
    file_sha256,
    find,
    gguf_file,
    is_on_hub,
    local_model,
    model_repository,
)
from lib.artifacts.models import model_faults
from lib.artifacts.problems import Problem
from lib.core.errors import UserError
from lib.engines import tiny
from lib.params.model import Model
from lib.prompts import PromptFormat

POINTER = "base.json"
"""File beside the tokenizer of every base model: the model's name, hashes and sizes of its files;
`gguf` is the hash of a GGUF file."""

LICENSE = "LICENSE"

KEPT = ("config.json", "generation_config.json", LICENSE)
"""Files of a pretrained model that are small enough to be copied beside its pointer."""

GGUF_TOKENS = "tokenizer.ggml.tokens"
"""Key of the vocabulary in a GGUF file's metadata: all tokens, by id."""

GGUF_SPECIAL = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
"""transformers' name of a special token → its name in a GGUF file."""

GGUF_FAULTS = (ImportError, LookupError, OSError, RuntimeError, ValueError, struct.error)
"""Exceptions of transformers and gguf for a file that is damaged or of an unknown architecture."""

PADDING = ("<|finetune_right_pad_id|>", "<|pad|>", "<pad>", "[PAD]")
"""Tokens that a tokenizer without a padding token may have for it; else its EOS pads."""


DAMAGED = (AttributeError, LookupError, RecursionError, StrictDataclassError, TypeError)
"""Exceptions of transformers for JSON files of an unexpected form."""


def load_pretrained(auto: Any, folder: Path, **options: Any) -> Any:
    """Return `auto.from_pretrained(folder)` without running code in the folder.

    Args:
        auto: one of transformers' Auto classes.
        options: further arguments of `from_pretrained`.

    Raises:
        UserError: the model needs code of its own, or its files do not fit together.
    """
    try:
        # By default transformers asks on standard input for permission to run a model's code, and a
        # user's piped input, such as questions for the model, may begin with "y".
        return auto.from_pretrained(folder, trust_remote_code=False, **options)
    # `DAMAGED` lists exceptions such as TypeError, raised for JSON of an unexpected form.
    except (*DAMAGED, ValueError, RuntimeError) as error:
        if "trust_remote_code" in str(error):
            fault = (
                "brings code of its own (auto_map in its JSON files), which is never run; "
                "use a model whose architecture transformers has"
            )
        elif "mismatched_sizes" in str(error):
            fault = "cannot be loaded as a model: config.json and weights differ in their shapes"
        elif isinstance(error, DAMAGED):
            one_line = " ".join(f"{type(error).__name__}: {error}".split())
            fault = f"cannot be loaded as a model: {one_line}"
        else:
            raise
        raise UserError(f"{folder} {fault}") from error


def write_base(
    directory: Path,
    problems: Iterable[Problem],
    *,
    prompt_format: PromptFormat,
    model: Model,
    seed: int,
) -> None:
    """Write the base model to `directory`: a new tiny model, or a pretrained one's tokenizer and
    pointer.

    Args:
        problems: training problems, on which the tiny model's tokenizer is trained.
        seed: of the tiny model's random weights.

    Raises:
        UserError: the model cannot be found, or has no safetensors, no fast tokenizer or no EOS.
    """
    if not model.name:  # the default: no pretrained model
        tiny.write_tiny(directory, problems, prompt_format=prompt_format, model=model, seed=seed)
        _write_pointer(directory, directory, name="", revision="")
        return
    folder = find_weights(model.name, model.revision)
    config = load_pretrained(AutoConfig, folder).get_text_config(decoder=True)
    positions = getattr(config, "max_position_embeddings", None)
    if positions and positions < model.max_seq_length:
        raise UserError(
            f"model.max_seq_length={model.max_seq_length}: {model.name} has {positions} positions "
            "for prompt and completion together; lower it"
        )
    tokenizer = load_pretrained(AutoTokenizer, folder, padding_side="left")
    # Lengths are counted with tokenizer.json, which only a fast tokenizer has.
    if not tokenizer.is_fast or tokenizer.eos_token is None:
        raise UserError(
            f"model.name={model.name}: expected a fast tokenizer (tokenizer.json) that has an "
            "end-of-sequence token"
        )
    tokenizer.chat_template = prompt_format.chat_template
    if tokenizer.pad_token is None:
        # The first usual padding token in the vocabulary, else EOS.
        known = tokenizer.get_vocab()
        tokenizer.pad_token = next((pad for pad in PADDING if pad in known), tokenizer.eos_token)
    # Each tag becomes one token; `fit_embeddings` adds the embedding rows when the model is loaded.
    if model.tag_tokens:
        tokenizer.add_tokens(list(prompt_format.marks))
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(directory)
    # Small files: configs and license.
    for name in KEPT:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, directory / name)
    _write_pointer(directory, folder, name=model.name, revision=model.revision)


def find_weights(name: str, revision: str) -> Path:
    """Return a pretrained model's folder: `name` itself, or the folder of its fetched commit.

    Raises:
        UserError: no such folder, repository or revision, no permission, no network, no
            safetensors, or a GGUF file that cannot be read.
    """
    # `find` returns the folder of a repository's files, and downloads them if needed.
    on_hub = is_on_hub(name, revision)
    place = find(model_repository(name, revision)) if on_hub else local_model(name)
    file = gguf_file(place)  # None for a model in transformers' format
    folder = dequantized(file) if file else place
    # Such as a repository without a tokenizer, for which transformers would make an empty one.
    if faults := list(model_faults(folder)):
        raise UserError(f"model.name={name}: {'; '.join(faults)}")
    return folder


def dequantized(file: Path) -> Path:
    """Convert a GGUF file to a float32 model with safetensors, once; return the model's folder.

    The weights are the file's rounded values in float32; the original ones are lost.
    Transformers (5.17) reads such a file but refuses to save the model, and takes the special
    tokens from the architecture's defaults (SmolLM2: the EOS of another model).

    Raises:
        UserError: transformers cannot read the file.
    """
    folder = dequantized_folder(file)  # named by the file's hash
    if not folder.is_dir():
        # `partial` is a temporary folder, renamed to `folder` at the end of the block.
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
    """Write the model and tokenizer of a GGUF file to `folder`, with the file's special tokens."""
    # Key -> value, such as "tokenizer.ggml.eos_token_id" -> 2. Lists of strings are skipped, except
    # for the vocabulary.
    metadata, _ = read_gguf_metadata(str(file), {GGUF_TOKENS})
    source: dict[str, Any] = {"folder": file.parent, "gguf_file": file.name}
    model = load_pretrained(AutoModelForCausalLM, **source, dtype=torch.float32)
    # The loaded weights are plain float32. With these two attributes, which call them quantised,
    # `save_pretrained` would refuse.
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
        shutil.copyfile(licence, folder / licence.name)


def weights_of(checkpoint: Path) -> Path:
    """Return the folder with a checkpoint's weights: itself, or the model that its pointer names.

    Raises:
        UserError: the weights cannot be found, or are not those that `prepare` saw.
    """
    pointer = read_pointer(checkpoint)
    # Only the pointer of a pretrained model has a name; all other checkpoints hold their weights.
    if not pointer.get("name"):
        return checkpoint
    folder = find_weights(pointer["name"], pointer["revision"])
    _check_unchanged(pointer, folder)
    return folder


def read_pointer(checkpoint: Path) -> dict[str, Any]:
    """Read a base model's pointer: `name` ('' for the tiny model), `revision`, `files`.

    Returns {} for any other checkpoint.
    """
    path = checkpoint / POINTER
    return dict(read_json(path)) if path.is_file() else {}


def has_added_rows(checkpoint: Path) -> bool:
    """Return True if the weights on disk have no embeddings for tokens added to the tokenizer.

    `fit_embeddings` computes these when the model is loaded.
    """
    # Only a pretrained model's weights lie elsewhere, without rows for tokens added here.
    if not read_pointer(checkpoint).get("name"):
        return False
    before = load_pretrained(AutoTokenizer, weights_of(checkpoint))
    return bool(_added_tokens(load_pretrained(AutoTokenizer, checkpoint), before))


def _added_tokens(tokenizer: PreTrainedTokenizerBase, before: PreTrainedTokenizerBase) -> list[str]:
    """List the added tokens of `tokenizer` that the pretrained tokenizer `before` lacks."""
    known = before.get_vocab()
    return [token for token in tokenizer.get_added_vocab() if token not in known]


def fit_embeddings(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, weights: Path
) -> None:
    """Add an embedding row for each token that was added to a pretrained tokenizer.

    The row is the mean of the rows of the pieces into which the pretrained tokenizer splits the
    token: "<answer>" gets the mean of, say, "<", "answer" and ">". It is the same at every load, so
    that an adapter is trained and merged on equal embeddings.

    Args:
        tokenizer: with the added tokens.
        weights: the folder of the pretrained model, whose tokenizer knows the pieces.
    """
    before = load_pretrained(AutoTokenizer, weights)
    added = _added_tokens(tokenizer, before)
    if not added:
        return
    # A padded embedding table may have rows enough already. It is never cut.
    rows = max(model.get_input_embeddings().weight.shape[0], len(tokenizer))
    model.resize_token_embeddings(rows, mean_resizing=False)
    layers: tuple[Any, ...] = (model.get_input_embeddings(), model.get_output_embeddings())
    # A set, since tied layers share one weight.
    tables = {layer.weight for layer in layers if layer is not None}
    with torch.no_grad():
        for token in added:
            pieces = before(token, add_special_tokens=False)["input_ids"]
            for table in tables:
                table[tokenizer.convert_tokens_to_ids(token)] = table[pieces].mean(dim=0)


def _weight_files(folder: Path) -> list[Path]:
    return sorted(path for pattern in WEIGHTS for path in folder.glob(pattern))


def _write_pointer(directory: Path, folder: Path, *, name: str, revision: str) -> None:
    """Write the pointer to the model in `folder`, with hashes and sizes of its files.

    Args:
        directory: folder of the checkpoint that gets the pointer.
        name, revision: as in params; '' for the tiny model.
    """
    files = [folder / "config.json", *_weight_files(folder)]
    # A pretrained model's own tokenizer must not change either: `fit_embeddings` reads it at every
    # load.
    if name:
        files += sorted(folder.glob("tokenizer*"))
    hashes = {
        path.name: {"sha256": file_sha256(path), "size": path.stat().st_size} for path in files
    }
    pointer = {"name": name, "revision": revision, "files": hashes}
    # The folder of a converted GGUF file is named after the file's hash (`dequantized_folder`).
    if folder.parent.name == DEQUANTIZED:
        pointer["gguf"] = folder.name
    write_json(directory / POINTER, pointer)


def _check_unchanged(pointer: dict[str, Any], folder: Path) -> None:
    """Compare a model's files with its pointer: sizes, and SHA-256 if the model has no commit.

    Raises:
        UserError: a file is missing or has changed.
    """
    for name, recorded in pointer["files"].items():
        path = folder / name
        same = path.is_file() and path.stat().st_size == recorded["size"]
        # A commit (`revision`) determines the content, so that gigabytes need not be hashed.
        if same and not pointer["revision"]:
            same = file_sha256(path) == recorded["sha256"]
        if not same:
            raise UserError(
                f"{path} is not the file that `prepare` saw; "
                "put it back, or take it as it is with `dvc repro --force prepare`"
            )
