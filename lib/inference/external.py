"""Find any model by folder or Hub id, read its prompt format, and open an engine for it."""

import contextlib
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import click

from lib.artifacts import read_json
from lib.core.errors import UserError
from lib.engines.base import Engine
from lib.models.files import GGUF, model_faults
from lib.prompts import PromptFormat, prompt_format, saved_format, saved_system
from lib.prompts.saved import SYSTEM_FILE

DEFAULT_MODEL = Path("data/models/export")
PIPELINE_BASE = Path("data/models/base")

STAGES = {"base": "prepare", "sft": "sft", "dpo": "dpo", "grpo": "grpo", "export": "export"}
"""Name of a model below data/models → the stage that writes it."""

OWN = "own"
"""Layout name for the model's own chat template."""

# `owner/name` or `name`. Laxer than params' HUB_ID: models such as `gpt2` have no owner.
_HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExternalModel:
    """A model with its prompt format, chat template and system prompt, not loaded yet.

    Attributes:
        folder: the model's files; of an adapter only its own.
        base: the base model of an adapter; otherwise the model itself.
        dtype: type of the saved weights, also used for computing.
        positions: most tokens of prompt and completion together, None for no limit.
        known_format: prompt format of its completions, None if unknown.
        system: system prompt, '' for none.
        template: chat template for its prompts; None for the tokenizer's own.
    """

    folder: Path
    base: Path
    dtype: str
    positions: int | None
    known_format: PromptFormat | None
    system: str
    template: str | None

    @property
    def prompt_format(self) -> PromptFormat:
        if self.known_format is None:
            raise UserError(
                f"{self.folder} does not say which prompt format it answers in; set PROMPT_FORMAT, "
                f"for example boxed/{OWN}: its own chat template, the answer in \\boxed{{}} "
                "(docs/evaluate.md)"
            )
        return self.known_format

    def open(
        self,
        engine: str,
        *,
        attention: str,
        max_seq_length: int,
        batch_size: int,
    ) -> Engine:
        """Load the model into an engine; the caller closes it.

        Args:
            engine: a name in `ENGINES`.
            attention: the attention implementation, as transformers names it.
            max_seq_length: tokens of prompt and completion together that memory is reserved for.
            batch_size: completions generated at a time.

        Raises:
            UserError: the engine is not installed, or the weights are unusable.
        """
        # Imported here, so that importing `lib.inference` does not import torch.
        from lib.engines.base import open_engine

        opened = open_engine(
            engine,
            self.folder,
            base=self.base,
            dtype=self.dtype,
            attention=attention,
            max_seq_length=min(max_seq_length, self.positions or max_seq_length),
            batch_size=batch_size,
        )
        tokenizer = opened.tokenizer
        tokenizer.chat_template = self.template or tokenizer.chat_template
        # Models that were never trained in batches have no padding token; EOS then pads, masked.
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        return opened


def external_model(
    model_id: str | Path, *, format_name: str = "", base: Path | None = None
) -> ExternalModel:
    """Describe the model in a folder or with a Hub id, downloading it if needed.

    Prompt format and system prompt are read from the model's folder, a folder `base` beside it, or
    an adapter's base model.

    Args:
        format_name: prompt format to use instead: `name`, `name/layout` for another layout,
            `name/own` for the model's own chat template. '' uses the saved format with that.
        base: base model of an adapter whose base is not found automatically.

    Raises:
        UserError: no such model or format, or the files are not a complete model.
    """
    # Before torch is imported: a misspelt name is refused at once, not after seconds. A model of
    # the Hub is downloaded here.
    folder = find_model(model_id)
    from lib.models.files import ADAPTER, is_adapter
    from lib.models.load import read_dtype, read_max_positions
    from lib.models.pretrained import load_tokenizer
    from lib.models.weights import weights_of

    # data/models/sft has its base at data/models/base; an export's adapter/ lies a level deeper.
    beside = (folder.parent / "base", folder.parent.parent / "base")
    base_folder = folder
    if is_adapter(folder):
        # The adapter's config names its base, by a Hub id or a path that may be no folder here.
        # Without a name, the adapter's own folder fills the place; `_first_model` skips it, since
        # it has no config.json.
        recorded = read_json(folder / ADAPTER).get("base_model_name_or_path") or folder
        candidates = [base] if base else [*beside, Path(recorded), PIPELINE_BASE]
        base_folder = _first_model(candidates, adapter=folder)
    for fault in model_faults(weights_of(base_folder)):
        raise UserError(fault)
    template = load_tokenizer(folder).chat_template
    places = (folder, *beside, base_folder)
    # "boxed/chatml" -> "boxed", "chatml"; "boxed" -> "boxed", "".
    name, _, layout = format_name.partition("/")
    own_template = not name or layout == OWN
    form: PromptFormat | None
    if name:
        form = prompt_format(name, layout=layout if layout and not own_template else "plain")
        # A saved format that cannot be read is replaced here, and no fault.
        with contextlib.suppress(UserError):
            tool = next((each.tool for each in map(saved_format, places) if each), "")
            if tool:
                warning = f"Warning: {folder} was trained with the tool {tool}, and {name} has none"
                click.echo(warning, err=True)
    else:
        form = next((each for each in map(saved_format, places) if each), None)
    if own_template and template is None:
        raise UserError(
            f"{folder} has no chat template, so its prompt is unknown; expected an export, "
            f"which has chat_template.jinja, or PROMPT_FORMAT without /{OWN}"
        )
    return ExternalModel(
        folder=folder,
        base=base_folder,
        dtype=read_dtype(base_folder),
        positions=read_max_positions(base_folder),
        known_format=form,
        system=next(
            (saved_system(place) for place in places if (place / SYSTEM_FILE).is_file()), ""
        ),
        template=None if own_template or form is None else form.chat_template,
    )


def find_model(model_id: str | Path) -> Path:
    """Return a model's folder: by path, by name below data/models, or from the Hub.

    A GGUF file is converted to float32 weights. Of a Hub id, what `make fetch` brought comes first.

    Raises:
        UserError: there is no such model; the message names the command that makes one.
    """
    if place := model_here(model_id):
        if place.is_dir():
            return place
        from lib.models.pretrained import dequantized

        return dequantized(place)
    refuse_missing(model_id)
    from lib.models.hub import MODEL_FILES, Repository, download

    # Without a commit the Hub's main branch is downloaded; no stage of the pipeline depends on it.
    # No key in params names this model: an error begins with "no such folder" instead.
    on_hub = Repository(
        "model", str(model_id), revision="", files=MODEL_FILES, named_by="no such folder"
    )
    return download(on_hub)


def model_here(model_id: str | Path) -> Path | None:
    """Return a model's folder or GGUF file on this machine, or None: see `find_model`."""
    from lib.models.hub import fetched_model, local_model

    # In an experiment's copy, `data/hub` is that of the checkout around it.
    path = local_model(str(model_id))
    if path.is_dir() or (path.suffix == GGUF and path.is_file()):
        return path
    below = DEFAULT_MODEL.parent / model_id
    return below if below.is_dir() else fetched_model(str(model_id))


def refuse_missing(model_id: str | Path) -> None:
    """Refuse a name without a local model if it means a pipeline's checkpoint, or is no Hub id.

    Raises:
        UserError: names the command that makes the folder, or the expected form.
    """
    folder, models = Path(model_id), DEFAULT_MODEL.parent
    is_gguf = folder.suffix == GGUF and folder.is_file()
    if is_gguf or any(place.is_dir() for place in (folder, models / folder)):
        return
    # `sft` or `data/models/sft`. The first is a valid Hub id too; here it means the pipeline's
    # checkpoint, which the stage `sft` writes.
    if folder.parent in (Path(), models) and (stage := STAGES.get(folder.name)):
        raise UserError(
            f"{models / folder.name} is missing: no run made it yet; run `dvc repro {stage}`"
        )
    if not _HUB_ID.fullmatch(str(model_id)):
        raise UserError(
            f"no model at {model_id}; expected a folder with a model "
            f"({DEFAULT_MODEL} after `dvc repro export`) or a Hub id such as org/name"
        )


def _first_model(places: Sequence[Path], *, adapter: Path) -> Path:
    for place in places:
        if (place / "config.json").is_file():
            return place
    raise UserError(
        f"{adapter} is an adapter, and its base model is not in "
        f"{', '.join(map(str, places))}; set --base FOLDER"
    )
