"""The files of a model's folder, and checks that they are complete, without torch."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from lib.artifacts import read_json
from lib.core.errors import UserError
from lib.params.model import Lora

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
        elif folder.open("rb").read(4) != b"GGUF":
            yield f"{folder} is not a GGUF file; copy it again"
        return
    if not (folder / "config.json").is_file():
        yield f"{folder} holds no model: expected a config.json in it"
        return
    if not any((folder / name).is_file() for name in TOKENIZERS):
        yield f"{folder} has no tokenizer ({TOKENIZERS[0]}); save it there with the model"
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
    layers = (config.get("num_hidden_layers") or 0) if isinstance(config, dict) else None
    # Every layer has one tensor or more, so more layers than tensors are a fault. transformers
    # builds all layers before it reads a weight: a config with a million would fill the memory.
    if weights and not (isinstance(layers, int) and layers <= num_tensors):
        yield f"{folder}/config.json: num_hidden_layers {layers} of {num_tensors} tensors"


def _indexed_files(folder: Path) -> set[str]:
    """Return the names of the files of weights in several; an empty set for one file."""
    # transformers reads no index beside whole weights.
    if (folder / "model.safetensors").exists() or not (folder / INDEX).exists():
        return set()
    content = read_json(folder / INDEX, remedy="copy it again")
    files = content.get("weight_map") if isinstance(content, dict) else None
    if not (isinstance(files, dict) and all(isinstance(name, str) for name in files.values())):
        raise UserError(f"{folder / INDEX}: no weight_map of file names; copy it again")
    return {*files.values()}


ADAPTER_KEYS = {
    *("peft_type", "r", "lora_alpha", "lora_dropout", "target_modules", "bias"),
    *("use_rslora", "use_dora", "lora_bias", "fan_in_fan_out", "ensure_weight_tying"),
    *("modules_to_save", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern"),
    *("trainable_token_indices", "init_lora_weights", "base_model_name_or_path", "revision"),
}
"""Keys of an adapter's config that are read. Any other must be off: some repeat layers, compute for
hours or open files."""

WITHOUT_EFFECT = {
    *("auto_mapping", "inference_mode", "peft_version", "megatron_core", "qalora_group_size"),
    *("runtime_config", "task_type"),
}
"""Keys that are on in every config or have no effect once the weights are loaded."""

ADAPTER_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_(?:embedding_)?([AB])(?:\.weight)?")
"""Name of a LoRA matrix: its module, and which of the two it is."""


def read_adapter(folder: Path) -> dict[str, Any]:
    """Return an adapter's config with the keys in `ADAPTER_KEYS`, as its tensors bear it out.

    Raises:
        UserError: no adapter as safetensors, a setting that is not supported, or a rank that the
            tensors lack.
    """
    file, weights = (folder / name for name in ADAPTER_FILES)
    if not (file.is_file() and weights.is_file()):
        raise UserError(
            f"{folder} holds no LoRA adapter: expected {' and '.join(ADAPTER_FILES)} in it; other "
            "weights can run code"
        )
    shapes = tensor_shapes(weights)
    saved = read_json(file, remedy="copy it again")
    if not isinstance(saved, dict):
        raise UserError(f"{file}: expected an object, got {type(saved).__name__}; copy it again")
    matrices = [
        (match, shapes[match[0]]) for match in map(ADAPTER_TENSOR.fullmatch, shapes) if match
    ]
    ranks = {shape[0] for match, shape in matrices if match[2] == "A"}
    config = {key: value for key, value in saved.items() if key in ADAPTER_KEYS}
    config["task_type"] = "CAUSAL_LM"
    patterns = [config.get(name) or {} for name in ("rank_pattern", "alpha_pattern")]
    # r may stand for no module if patterns name them all.
    sizes = [config.get("r"), *(patterns[0].values() if isinstance(patterns[0], dict) else ())]
    if extra := [key for key in saved if key not in ADAPTER_KEYS | WITHOUT_EFFECT and saved[key]]:
        fault = f"`{extra[0]}` is not supported"
    elif saved.get("peft_type") != "LORA":
        fault = f"peft_type {saved.get('peft_type')} is not LORA"
    elif config.get("init_lora_weights", True) not in (True, False, "gaussian", "orthogonal"):
        fault = "init_lora_weights changes the base model's weights"
    # peft takes these as regular expressions, which can run for hours.
    elif not all(isinstance(each, dict) for each in patterns) or not all(
        re.fullmatch(r"[\w.]+", name)
        for each in (*patterns, [str(config.get("layers_pattern") or "layers")])
        for name in each
    ):
        fault = "expected names of layers in its patterns"
    elif (
        not all(isinstance(size, int) and 0 < size <= max(ranks, default=0) for size in sizes)
        or not set(sizes[bool(patterns[0]) :]) <= ranks
    ):
        fault = f"r {sizes[0]}, and the tensors have {sorted(ranks)}"
    else:
        # A regular expression or "all-linear": the modules are those that have tensors.
        if isinstance(config.get("target_modules"), str):
            config["target_modules"] = sorted({match[1] for match, _ in matrices})
        return config
    raise UserError(f"{file}: {fault}; use another adapter")


def adapter_faults(folder: Path, *, lora: Lora, modules: Collection[str] = ()) -> Iterator[str]:
    """Yield a text for each fault of a folder with a LoRA adapter, mostly with the remedy.

    Args:
        lora: `model.lora` of params, with which the adapter must have been trained.
        modules: the base model's modules that have a weight; () if they are not known yet.
    """
    try:
        saved = read_adapter(folder)
        names = tensors_of(folder / ADAPTER_WEIGHTS)
    except UserError as error:
        yield error.message
        return
    # PEFT takes these from the file: a run would silently differ from params.
    targets = {name.rpartition(".")[2] for name in saved["target_modules"]}
    for key, value, wanted in (
        ("rank", saved["r"], lora.rank),
        ("alpha", saved.get("lora_alpha"), lora.alpha),
        ("target_modules", sorted(targets), sorted(lora.target_modules)),
    ):
        if value != wanted:
            yield f"{folder} has {key} {value}; set model.lora.{key} to it, not {wanted}"
    halves: dict[str, set[str]] = {"A": set(), "B": set()}
    for match in filter(None, map(ADAPTER_TENSOR.fullmatch, names)):
        halves[match[2]].add(match[1])
    # A tied output layer has no weight of its own in the base's files.
    unexpected = (halves["A"] | halves["B"]) - {*modules, "lm_head"} if modules else set()
    wanted_modules = {name for name in modules if name.rpartition(".")[2] in targets}
    if saved.get("layers_to_transform") is not None:
        wanted_modules = set()
    missing = (wanted_modules | halves["A"] | halves["B"]) - (halves["A"] & halves["B"])
    if missing or unexpected or not halves["A"]:
        yield f"{folder} {misfit(missing, unexpected)}"


def misfit(missing: Iterable[str], unexpected: Iterable[str]) -> str:
    """Say which tensors a model lacks and has no place for, with the first three names of each."""
    texts = [
        f"{what} {', '.join(sorted(names)[:3])} ({len(names)} in all)"
        for what, names in (("lacks", {*missing}), ("has no place for", {*unexpected}))
        if names
    ]
    return f"{' and '.join(texts) or 'has no tensor of LoRA'}; use weights made for this model"


def read_selections(checkpoint: Path) -> dict[str, Mapping[str, float]]:
    """Return {phase: validation point} that `select: best` chose in this and earlier phases."""
    file = checkpoint / SELECTED
    return dict(read_json(file)) if file.is_file() else {}


def tensors_of(path: Path) -> list[str]:
    """Return the names of the tensors in a safetensors file.

    Raises:
        UserError: header and size of the file do not fit together, as in a truncated copy.
    """
    return list(tensor_shapes(path))


def tensor_shapes(path: Path) -> dict[str, list[int]]:
    """Return the shapes of the tensors in a safetensors file by name; raises as `tensors_of`."""
    try:
        # `safe_open` reads only the header, with any framework: no weights, no torch.
        with safe_open(path, framework="np") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise UserError(f"{path}: not a whole safetensors file ({error}); copy it again") from error


def weighted_modules(folder: Path) -> set[str]:
    """Return the names of the modules that have a weight in the safetensors of a model's folder."""
    names = (name for path in folder.glob("*.safetensors") for name in tensors_of(path))
    return {name.removesuffix(".weight") for name in names if name.endswith(".weight")}


def token_faults(folder: Path) -> Iterator[str]:
    """Yield a text for each special token of a model's folder that has no embedding."""
    config, settings, tokenizer = (
        read_json(file) if file.is_file() else {}
        for file in (
            folder / name for name in ("config.json", "tokenizer_config.json", TOKENIZERS[0])
        )
    )
    rows = (config.get("text_config") or config).get("vocab_size")
    ids = {each["content"]: each["id"] for each in tokenizer.get("added_tokens") or ()}
    for role in ("pad_token", "eos_token", "bos_token"):
        token = settings.get(role)
        token = token.get("content") if isinstance(token, dict) else token
        if rows and ids.get(token, 0) >= rows:
            yield (
                f"{folder}: {role} {token} has the id {ids[token]}, and the model has embeddings "
                f"of {rows} tokens; name another {role} in tokenizer_config.json"
            )
