"""Whether what params name is there: files of problems, models, what the export needs.

Read from names, sizes and headers only, so that it costs no import of torch and no second.
"""

from collections.abc import Iterator
from pathlib import Path

from lib.artifacts.hub import COMMIT, is_on_hub
from lib.artifacts.models import model_faults
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
        # A kernel without a commit is brought at first use, by transformers.
        if repository.kind != "kernel" and not COMMIT.fullmatch(repository.revision):
            yield f"{repository.named_by}: `{repository}` has no commit yet; run `make fetch`"
    model = params.model
    if model.name and not is_on_hub(model.name, model.revision):
        faults = model_faults(Path(model.name))
        yield from (f"model.name: {fault}" for fault in faults)
    try:
        find_quantizer(params.export.gguf)
    except UserError as error:
        yield error.message
