"""Whether what params name is there: files of problems, models, what the export needs.

Read from names, sizes and headers only, so that it costs no import of torch and no second.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

from lib.artifacts.hub import COMMIT, is_on_hub
from lib.errors import UserError
from lib.export.quantizer import find_quantizer
from lib.params import Params
from lib.params.data import PathSource
from lib.planning.fetch import repositories_of, sources_of
from lib.prompts.system import FROM_FILE


def absent_inputs(params: Params) -> Iterator[str]:
    """What params name and is not there, or is not whole, each with its remedy."""
    for source in sources_of(params):
        if isinstance(source, PathSource) and not Path(source.path).exists():
            yield f"prepare: {source.path} is missing; put it there or change params.yaml"
    rates = params.prepare.grpo.difficulty.file
    if rates and not Path(rates).is_file():
        yield f"prepare.grpo.difficulty.file: {rates} is missing; `make difficulty` writes it"
    system = params.prompt.system
    if system.startswith(FROM_FILE) and not Path(system.removeprefix(FROM_FILE)).is_file():
        yield f"prompt.system: {system.removeprefix(FROM_FILE)} is missing"
    for repository in repositories_of(params):
        if not COMMIT.fullmatch(repository.revision):
            yield f"{repository.named_by}: `{repository}` has no commit yet; run `make fetch`"
    model = params.model
    if model.name and not is_on_hub(model.name, model.revision):
        yield from model_faults(Path(model.name))
    try:
        find_quantizer(params.export.gguf)
    except UserError as error:
        yield error.message


def model_faults(folder: Path) -> Iterator[str]:
    """What a folder with a pretrained model lacks."""
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            yield f"model.name={folder}: no {name} in it; save model and tokenizer there together"
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        yield f"model.name={folder}: no *.safetensors in it; other weights can run code"
    for path in weights:
        if fault := safetensors_fault(path):
            yield f"{path}: {fault}; copy it again"


def safetensors_fault(path: Path) -> str:
    """Why a safetensors file is not whole, by its header and size; '' for one that is."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if 8 + length > size:
            return f"truncated, {size} bytes"
        try:
            header = json.loads(file.read(length))
        except ValueError:
            return "not a safetensors file"
    header.pop("__metadata__", None)
    end = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    return "" if end == size else f"truncated, {size} of {end} bytes"
