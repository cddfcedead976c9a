"""What a model's folder says about how to ask it: template, prompt format, stop strings, system."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from lib.errors import UserError
from lib.prompts import PROMPT_FORMATS, PromptFormat, prompt_format, saved_system
from lib.prompts.layouts import LAYOUTS
from lib.prompts.system import SAVED

DEFAULT_MODEL = Path("data/models/export")

HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "README.md")
"""What is fetched from the Hub: no pickled weights."""

_HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")


def find_model(model_id: str | Path) -> Path:
    """The folder of a model on this machine; one of the Hub is fetched.

    Raises:
        UserError: there is no such model; says what would make or name one.
    """
    folder = Path(model_id)
    if folder.is_dir():
        if any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
            return folder
        raise UserError(f"{folder} holds no model: expected a config.json in it")
    if folder == DEFAULT_MODEL:
        raise UserError(f"{folder} is missing: nothing is exported yet; run `dvc repro export`")
    if not _HUB_ID.fullmatch(str(model_id)):
        raise UserError(
            f"no model at {model_id}; expected a folder that holds one "
            f"({DEFAULT_MODEL} after `dvc repro export`) or a Hub id such as org/name"
        )
    return _fetch(str(model_id))


def _fetch(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(HUB_FILES)))
    except (OSError, HFValidationError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"no model `{hub_id}`: no such folder, and the Hub does not give it ({reason}); "
            f"expected a folder ({DEFAULT_MODEL} after `dvc repro export`) or a Hub id"
        ) from error


def base_of(folder: Path) -> Path:
    """The base model that `prepare` wrote beside a checkpoint."""
    return folder.parent / "base"


def find_system(folder: Path) -> str:
    """The system prompt that the model was trained with, '' where none is kept.

    It is kept with the model, or with the base model beside it.
    """
    places = (folder, base_of(folder))
    return next((saved_system(place) for place in places if (place / SAVED).is_file()), "")


def find_format(template: str, *, added: Sequence[str], card: str) -> PromptFormat | None:
    """The prompt format that a model answers in, None where it is no known one.

    The saved chat template decides. Formats that render prompts alike (`xml`, `boxed`,
    `question_only`) are told apart by the model card, else by tags that are tokens of their own.

    Args:
        template: Jinja source saved with the tokenizer.
        added: tokens added to the vocabulary, in order; four of them may be custom tags.
        card: the model card's text, '' for none.
    """
    alike = [known for known in _formats(added) if known.chat_template == template]
    named = re.search(r"format `(\w+)`", card)
    if len(alike) > 1 and named:
        alike = [known for known in alike if known.name == named[1]]
    if len(alike) > 1:
        alike = [known for known in alike if known.marks and set(known.marks) <= set(added)]
    return alike[0] if len(alike) == 1 else None


def _formats(added: Sequence[str]) -> Iterator[PromptFormat]:
    """Every format, in every layout, with its own tags and with those that were added."""
    seen: set[PromptFormat] = set()
    for name in PROMPT_FORMATS:
        for layout in LAYOUTS:
            for tags in ((), tuple(added)):
                try:
                    known = prompt_format(name, tags=tags, layout=layout)
                except UserError:  # not a combination that a format can take
                    continue
                if known not in seen:
                    seen.add(known)
                    yield known
