"""What a model's folder holds about how to prompt it: prompt format and system prompt."""

import re
from pathlib import Path

from lib.artifacts.models import model_faults
from lib.errors import UserError
from lib.prompts import PromptFormat, saved_format, saved_system
from lib.prompts.system import SAVED

DEFAULT_MODEL = Path("data/models/export")

_HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")


def find_model(model_id: str | Path) -> Path:
    """The folder of a model on this machine; one of the Hub is fetched.

    Raises:
        UserError: there is no such model; says what would make or name one.
    """
    folder = Path(model_id)
    if folder.is_dir():
        # An adapter, and what `prepare` keeps of a pretrained model, have their weights elsewhere.
        elsewhere = ("adapter_config.json", "base.json")
        if not any((folder / name).is_file() for name in elsewhere):
            for fault in model_faults(folder):
                raise UserError(fault)
        return folder
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


def base_of(folder: Path) -> Path:
    """The base model that `prepare` wrote beside a checkpoint, or beside an export's folder."""
    places = (folder.parent / "base", folder.parent.parent / "base")
    return next((place for place in places if place.is_dir()), places[0])


def find_system(folder: Path) -> str:
    """The system prompt that the model was trained with, '' where none is kept.

    It is kept with the model, or with the base model beside it.
    """
    places = (folder, base_of(folder))
    return next((saved_system(place) for place in places if (place / SAVED).is_file()), "")


def find_format(folder: Path) -> PromptFormat | None:
    """The prompt format that a model answers in, None for a model that was not made here.

    It is kept with the model, or with the base model beside it.

    Raises:
        UserError: the file that says so is damaged.
    """
    return saved_format(folder) or saved_format(base_of(folder))
