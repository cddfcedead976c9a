"""Any model by its folder or Hub id: what it is, how it is prompted, and an engine around it."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from lib.artifacts import read_json
from lib.artifacts.models import model_faults
from lib.core.errors import UserError
from lib.engines.base import Engine
from lib.engines.registry import ENGINES
from lib.prompts import PromptFormat, prompt_format, saved_format, saved_system
from lib.prompts.saved import SAVED

DEFAULT_MODEL = Path("data/models/export")
PIPELINE_BASE = Path("data/models/base")

OWN = "own"
"""Layout that keeps the chat template that a model came with."""

_HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExternalModel:
    """A model and how it is prompted.

    Attributes:
        base: the weights that an adapter was trained on; the model itself where it is none.
        dtype: type that its weights were saved in, and are computed in.
        positions: tokens that prompt and completion may have together, None for no limit.
        known_format: what its completions are read by, None where nothing says.
        system: system prompt, '' for none.
        template: chat template that its prompts are rendered with; None for its own.
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
        """The format, for a caller that cannot do without.

        Raises:
            UserError: nothing says which.
        """
        if self.known_format is None:
            raise UserError(
                f"{self.folder} does not say which prompt format it answers in; set PROMPT_FORMAT, "
                f"for example boxed/{OWN}: its own chat template, the answer in \\boxed{{}} "
                "(docs/evaluate.md)"
            )
        return self.known_format

    def positions_on(self, engine: str, *, max_seq_length: int) -> int | None:
        """`positions`, or the tokens that an engine with a copy of the weights has memory for."""
        return self.positions if ENGINES[engine].live else self._room(max_seq_length)

    def _room(self, max_seq_length: int) -> int:
        return min(max_seq_length, self.positions or max_seq_length)

    def open(
        self,
        engine: str,
        *,
        attention: str,
        max_seq_length: int,
        batch_size: int,
    ) -> Engine:
        """An engine that generates from it; the caller closes it.

        Args:
            engine: of `ENGINES`.

        Raises:
            UserError: no such engine here, or weights that cannot be loaded.
        """
        from lib.engines.base import loading, open_engine

        with loading(self.folder):
            opened = open_engine(
                engine,
                self.folder,
                base=self.base,
                dtype=self.dtype,
                attention=attention,
                max_seq_length=self._room(max_seq_length),
                batch_size=batch_size,
            )
        tokenizer = opened.tokenizer
        tokenizer.chat_template = self.template or tokenizer.chat_template
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        return opened


def external_model(
    model_id: str | Path, *, format_name: str = "", base: Path | None = None
) -> ExternalModel:
    """A model by its folder, or by an id of the Hub, from which it is then fetched.

    Prompt format and system prompt are those that are kept with the model, or else with the base
    model beside it or below it.

    Args:
        format_name: a prompt format in place of that: `name`, `name/layout` for another layout,
            `name/own` for the model's own chat template.
        base: of an adapter whose base is not found by itself.

    Raises:
        UserError: no such model or format, or files that make up no model.
    """
    folder = find_model(model_id)
    from lib.engines.base import loading
    from lib.engines.policy import (
        ADAPTER,
        is_adapter,
        load_tokenizer,
        read_dtype,
        read_max_positions,
    )
    from lib.engines.pretrained import weights_of

    beside, below = (folder.parent / "base", folder.parent.parent / "base"), folder
    if is_adapter(folder):
        own = read_json(folder / ADAPTER).get("base_model_name_or_path") or folder
        below = _first_model([base] if base else [*beside, Path(own), PIPELINE_BASE], of=folder)
    for fault in model_faults(weights_of(below)):
        raise UserError(fault)
    places = (folder, *beside, below)
    with loading(folder):
        template, positions = load_tokenizer(folder).chat_template, read_max_positions(below)
        dtype = read_dtype(below)
    name, _, layout = format_name.partition("/")
    form = next((each for each in map(saved_format, places) if each), None)
    own = not name or layout == OWN
    if name:
        form = prompt_format(name, layout=layout if layout and not own else "plain")
    if own and template is None:
        raise UserError(
            f"{folder} has no chat template, so nothing says how to prompt it; expected an export, "
            f"which brings chat_template.jinja, or PROMPT_FORMAT without /{OWN}"
        )
    return ExternalModel(
        folder=folder,
        base=below,
        dtype=dtype,
        positions=positions,
        known_format=form,
        system=next((saved_system(place) for place in places if (place / SAVED).is_file()), ""),
        template=None if own or form is None else form.chat_template,
    )


def find_model(model_id: str | Path) -> Path:
    """A folder of that path, or of that name below data/models; a model of the Hub is fetched.

    Raises:
        UserError: there is no such model; says what would make or name one.
    """
    folder = Path(model_id)
    for place in (folder, DEFAULT_MODEL.parent / folder):
        if place.is_dir():
            return place
    if folder == DEFAULT_MODEL:
        raise UserError(f"{folder} is missing: nothing is exported yet; run `dvc repro export`")
    if not _HUB_ID.fullmatch(str(model_id)):
        raise UserError(
            f"no model at {model_id}; expected a folder that holds one "
            f"({DEFAULT_MODEL} after `dvc repro export`) or a Hub id such as org/name"
        )
    from lib.artifacts.hub import MODEL_FILES, Repository, download

    # Nothing is reproduced from here: without a commit, it is the branch as it is today.
    return download(Repository("model", str(model_id), "", MODEL_FILES, named_by="no such folder"))


def _first_model(places: Sequence[Path], *, of: Path) -> Path:
    for place in places:
        if (place / "config.json").is_file():
            return place
    raise UserError(
        f"{of} is an adapter, and the model that it was trained on is not in "
        f"{', '.join(map(str, places))}; give BASE_MODEL=FOLDER"
    )
