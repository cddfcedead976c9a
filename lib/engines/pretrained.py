"""A base model from the Hub or a folder, of which `prepare` keeps tokenizer and pointer.

Weights of several gigabytes are not copied into the pipeline. `base.json` says which they are, with
the hash of every file, and every later stage finds them by it.
"""

import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from lib.artifacts import read_json, write_json
from lib.artifacts.hub import WEIGHTS, find, is_on_hub, model_repository
from lib.artifacts.problems import Problem
from lib.core.errors import UserError
from lib.engines import tiny
from lib.params.model import Model
from lib.prompts import PromptFormat

POINTER = "base.json"
"""Beside the tokenizer of every base model: what it is, and the hashes of its files."""

KEPT = ("config.json", "generation_config.json")
"""Files of a pretrained model that are small enough to stand beside its pointer."""

PADDING = ("<|finetune_right_pad_id|>", "<|pad|>", "<pad>", "[PAD]")
"""Tokens that a tokenizer without a padding token may have for it; else its EOS pads."""


def write_base(
    directory: Path,
    problems: Iterable[Problem],
    *,
    prompt_format: PromptFormat,
    model: Model,
    seed: int,
) -> None:
    """Write the model that training starts from: a tiny one, or tokenizer and pointer.

    Raises:
        UserError: the model cannot be found, or has no safetensors or no fast tokenizer.
    """
    if not model.name:
        tiny.write_base(directory, problems, prompt_format=prompt_format, model=model, seed=seed)
        _write_pointer(directory, directory, name="", revision="")
        return
    folder = find_weights(model.name, model.revision)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = prompted_tokenizer(
        folder, prompt_format=prompt_format, tag_tokens=model.tag_tokens, name=model.name
    )
    tokenizer.save_pretrained(directory)
    for name in KEPT:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, directory / name)
    _write_pointer(directory, folder, name=model.name, revision=model.revision)


def prompted_tokenizer(
    folder: Path, *, prompt_format: PromptFormat, tag_tokens: bool, name: str
) -> PreTrainedTokenizerBase:
    """A pretrained tokenizer with the prompt format's chat template, and its tags where asked for.

    Raises:
        UserError: it has no `tokenizer.json` (lengths are counted with that) or no EOS.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    if not tokenizer.is_fast or tokenizer.eos_token is None:
        raise UserError(
            f"model.name={name}: expected a fast tokenizer (tokenizer.json) that has an "
            "end-of-sequence token"
        )
    tokenizer.chat_template = prompt_format.chat_template
    if tokenizer.pad_token is None:
        known = tokenizer.get_vocab()
        tokenizer.pad_token = next((pad for pad in PADDING if pad in known), tokenizer.eos_token)
    if tag_tokens:
        tokenizer.add_tokens(list(prompt_format.marks))
    return tokenizer


def find_weights(name: str, revision: str) -> Path:
    """The folder that holds a pretrained model: the one named, or where its commit was fetched to.

    Raises:
        UserError: no such folder, repository or revision, no permission, no network.
    """
    on_hub = is_on_hub(name, revision)
    folder = find(model_repository(name, revision)) if on_hub else Path(name)
    if not (folder / "config.json").is_file():
        raise UserError(f"model.name={name}: no folder with a config.json is there")
    if not _weight_files(folder):
        raise UserError(
            f"model.name={name}: no *.safetensors in {folder}; other weights can run code"
        )
    return folder


def weights_of(checkpoint: Path) -> Path:
    """Where the weights of a checkpoint lie: in it, or where its pointer says.

    Raises:
        UserError: they cannot be found, or are not those that `prepare` saw.
    """
    pointer = read_pointer(checkpoint)
    if not pointer.get("name"):
        return checkpoint
    folder = find_weights(pointer["name"], pointer["revision"])
    _check_unchanged(pointer, folder)
    return folder


def read_pointer(checkpoint: Path) -> dict[str, Any]:
    """`name`, `revision` and `files` of a base model; empty for any other checkpoint."""
    path = checkpoint / POINTER
    return dict(read_json(path)) if path.is_file() else {}


def has_added_rows(checkpoint: Path) -> bool:
    """Whether its model has rows that its weights on disk lack (see `fit_embeddings`)."""
    if not read_pointer(checkpoint).get("name"):
        return False
    before = AutoTokenizer.from_pretrained(weights_of(checkpoint))
    return bool(_added_tokens(AutoTokenizer.from_pretrained(checkpoint), before))


def _added_tokens(tokenizer: PreTrainedTokenizerBase, before: PreTrainedTokenizerBase) -> list[str]:
    known = before.get_vocab()
    return [token for token in tokenizer.get_added_vocab() if token not in known]


def fit_embeddings(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, weights: Path
) -> None:
    """Give each token that was added to a pretrained tokenizer a row, the mean of its pieces' rows.

    The same rows at every load: an adapter is trained and merged on equal embeddings.

    Args:
        tokenizer: with the added tokens.
        weights: the folder of the pretrained model, whose tokenizer knows the pieces.
    """
    before = AutoTokenizer.from_pretrained(weights)
    added = _added_tokens(tokenizer, before)
    if not added:
        return
    rows = max(model.get_input_embeddings().weight.shape[0], len(tokenizer))
    model.resize_token_embeddings(rows, mean_resizing=False)
    tables = _tables(model)
    with torch.no_grad():
        for token in added:
            pieces = before(token, add_special_tokens=False)["input_ids"]
            for table in tables:
                table[tokenizer.convert_tokens_to_ids(token)] = table[pieces].mean(dim=0)


def _tables(model: PreTrainedModel) -> list[torch.Tensor]:
    """Rows of the input and output embeddings, which may be one and the same."""
    layers: tuple[Any, ...] = (model.get_input_embeddings(), model.get_output_embeddings())
    return list({id(layer.weight): layer.weight for layer in layers if layer is not None}.values())


def _weight_files(folder: Path) -> list[Path]:
    return sorted(path for pattern in WEIGHTS for path in folder.glob(pattern))


def _write_pointer(directory: Path, folder: Path, *, name: str, revision: str) -> None:
    files = [folder / "config.json", *_weight_files(folder)]
    if name:
        files += sorted(folder.glob("tokenizer*"))
    hashes = {path.name: {"sha256": _sha256(path), "size": path.stat().st_size} for path in files}
    write_json(directory / POINTER, {"name": name, "revision": revision, "files": hashes})


def _check_unchanged(pointer: dict[str, Any], folder: Path) -> None:
    """Sizes always; hashes where nothing else pins the content, as a commit does."""
    for name, seen in pointer["files"].items():
        path = folder / name
        same = path.is_file() and path.stat().st_size == seen["size"]
        if not same or not (pointer["revision"] or _sha256(path) == seen["sha256"]):
            raise UserError(
                f"{path} is not the file that `prepare` saw; "
                "put it back, or take it as it is with `dvc repro --force prepare`"
            )


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
