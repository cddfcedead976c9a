"""The files of a model's folder, and checks that they are complete, without torch."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from lib.artifacts import read_json
from lib.core.errors import UserError

ADAPTER_FILES = ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""Files of a LoRA adapter, as PEFT, TRL and Unsloth save it."""

SELECTED = "selected.json"
"""File of a checkpoint with the validation point that `select: best` chose in each phase."""

GGUF = ".gguf"

LICENSE = "LICENSE"

INDEX = "model.safetensors.index.json"
"""Names the files of weights in several."""

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Vocabulary files; the folder of a model must have one of them."""


def is_adapter(checkpoint: Path) -> bool:
    """Return True if a checkpoint holds an adapter instead of a full model."""
    return (checkpoint / ADAPTER).is_file()


def model_faults(folder: Path) -> Iterator[str]:
    """Yield a text for each fault of a model's folder or GGUF file, mostly with the remedy.

    Nothing is yielded for a complete model. A fault that hides others ends the check.
    """
    if folder.suffix == GGUF:
        if not folder.is_file():
            yield f"{folder} is missing; put the file there"
        # Every GGUF file begins with these four bytes.
        elif folder.open("rb").read(4) != b"GGUF":
            yield f"{folder} is not a GGUF file; copy it again"
        return
    if not (folder / "config.json").is_file():
        yield f"{folder} holds no model: expected a config.json in it"
        return
    if not any((folder / name).is_file() for name in TOKENIZERS):
        yield f"{folder} has no tokenizer ({TOKENIZERS[0]}); save it there with the model"
    # Pickled weights (`*.bin`) do not count: loading them can run code.
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        yield f"{folder} has no *.safetensors; other weights can run code"
    try:
        # Only headers are read: some kilobytes per file instead of gigabytes.
        num_tensors = sum(len(tensors_of(path)) for path in weights)
        config = read_json(folder / "config.json", remedy="copy it again")
        files = _indexed_files(folder)
    except UserError as error:
        yield error.message
        return
    if missing := sorted(files - {path.name for path in weights}):
        yield f"{folder} has no {', '.join(missing)}, which {INDEX} names; copy it again"
    # 0 without the entry, which passes below; None, which fails, if config.json is no object.
    layers = (config.get("num_hidden_layers") or 0) if isinstance(config, dict) else None
    # Every layer has one tensor or more, so more layers than tensors are a fault. transformers
    # builds all layers before it reads a weight: a config with a million would fill the memory.
    if weights and not (isinstance(layers, int) and layers <= num_tensors):
        yield f"{folder}/config.json: num_hidden_layers {layers} of {num_tensors} tensors"


def _indexed_files(folder: Path) -> set[str]:
    """Return the names of the files of a model in several; an empty set for a model in one.

    Raises:
        UserError: the index is damaged.
    """
    # transformers reads no index beside whole weights.
    if (folder / "model.safetensors").exists() or not (folder / INDEX).exists():
        return set()
    content = read_json(folder / INDEX, remedy="copy it again")
    # The name of each tensor → its file.
    files = content.get("weight_map") if isinstance(content, dict) else None
    if not (isinstance(files, dict) and all(isinstance(name, str) for name in files.values())):
        raise UserError(f"{folder / INDEX}: no weight_map of file names; copy it again")
    return {*files.values()}


def adapter_faults(folder: Path, *, rank: int, alpha: int) -> Iterator[str]:
    """Yield a text for each fault of a folder with a LoRA adapter, mostly with the remedy.

    Args:
        rank, alpha: the values in params that the adapter must have been trained with.
    """
    config, weights = (folder / name for name in ADAPTER_FILES)
    if not (config.is_file() and weights.is_file()):
        yield f"{folder} holds no LoRA adapter: expected {' and '.join(ADAPTER_FILES)} in it"
        return
    try:
        # Called for its error: a UserError if the file is not whole.
        tensors_of(weights)
        saved = read_json(config, remedy="copy it again")
    except UserError as error:
        yield error.message
        return
    if not isinstance(saved, dict):
        yield f"{config}: expected an object, got {type(saved).__name__}; copy it again"
        return
    # PEFT takes rank and alpha from the file: a run would silently differ from params.
    for key, name, value in (("rank", "r", rank), ("alpha", "lora_alpha", alpha)):
        if saved.get(name) != value:
            yield f"{folder} has {name} {saved.get(name)}; set model.lora.{key} to it, not {value}"


def read_selections(checkpoint: Path) -> dict[str, Mapping[str, float]]:
    """Return {phase: validation point} that `select: best` chose in this and earlier phases."""
    file = checkpoint / SELECTED
    return dict(read_json(file)) if file.is_file() else {}


def describe_selection(phase: str, best: Mapping[str, float]) -> str:
    """Return a sentence on the step that `select: best` chose, and on the bias of its accuracy.

    Args:
        phase: `sft`, `dpo` or `grpo`.
        best: the validation point: its `step` of `last_step`, chosen among `num_points` by
            `answer_accuracy` (a share) on `num_problems` problems.
    """
    return (
        f"{phase} hands on step {best['step']} of {best['last_step']}: of {best['num_points']} "
        f"validation points it has the highest accuracy on {best['num_problems']} held-back "
        f"problems, {100 * best['answer_accuracy']:.1f} %. As a maximum of noisy numbers, this is "
        "higher than on new problems. Benchmarks played no part in the choice"
    )


def tensors_of(path: Path) -> list[str]:
    """Return the names of the tensors in a safetensors file.

    Raises:
        UserError: header and size of the file do not fit together, as in a truncated copy.
    """
    try:
        # `safe_open` reads only the header, with any framework: no weights, no torch.
        with safe_open(path, framework="np") as file:
            return list(file.keys())
    except SafetensorError as error:
        raise UserError(f"{path}: not a whole safetensors file ({error}); copy it again") from error
