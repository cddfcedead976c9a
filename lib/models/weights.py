"""Find a model's weights: in a folder, a fetched repository, or behind a base model's pointer.

Weights of several gigabytes are not copied into the pipeline: the pointer, `base.json`, has the
model's name and the hashes of its files, and every later stage finds the weights by it.
"""

from pathlib import Path
from typing import Any

from lib.artifacts import read_json, write_json
from lib.core.errors import UserError
from lib.models.files import model_faults
from lib.models.hub import (
    DEQUANTIZED,
    WEIGHTS,
    file_sha256,
    find,
    gguf_file,
    is_on_hub,
    local_model,
    model_repository,
)
from lib.models.untrusted import check_folder

POINTER = "base.json"
"""File beside the tokenizer of every base model: the model's name, hashes and sizes of its files;
`gguf` is the hash of a GGUF file."""


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


def find_weights(name: str, revision: str) -> Path:
    """Return a pretrained model's folder: `name` itself, or the folder of its fetched commit.

    Raises:
        UserError: no such folder, repository or revision, no permission, no network, no
            safetensors, or a GGUF file that cannot be read.
    """
    on_hub = is_on_hub(name, revision)
    place = find(model_repository(name, revision)) if on_hub else local_model(name)
    file = gguf_file(place)
    if file:
        # Imported here: only a GGUF file needs torch.
        from lib.models.pretrained import dequantized

        place = dequantized(file)
    # Such as a repository without a tokenizer, for which transformers would make an empty one.
    if faults := list(model_faults(place)):
        raise UserError(f"model.name={name}: {'; '.join(faults)}")
    check_folder(place)
    return place


def read_pointer(checkpoint: Path) -> dict[str, Any]:
    """Read a base model's pointer: `name` ('' for the tiny model), `revision`, `files`.

    Returns {} for any other checkpoint.
    """
    path = checkpoint / POINTER
    return dict(read_json(path)) if path.is_file() else {}


def _weight_files(folder: Path) -> list[Path]:
    return sorted(path for pattern in WEIGHTS for path in folder.glob(pattern))


def write_pointer(directory: Path, folder: Path, *, name: str, revision: str) -> None:
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
