"""Sets on the Hugging Face Hub, at a pinned revision.

The files of a revision are fetched into the Hub's cache once (`HF_HOME`), where later runs find
them without a network, and `datasets` reads them from there.
"""

import dataclasses
from pathlib import Path
from typing import Any

import datasets
import httpx
import huggingface_hub
from datasets import Dataset
from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from lib.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class HubSet:
    """One split of a dataset repository.

    Attributes:
        repo: "owner/name".
        revision: commit of the repository, 40 hex digits.
        subset: the card's name of a configuration, '' for the only one.
        split: "train", "test", …
        files: glob of the files that hold the split ("data/cot-*.parquet"); '' fetches the whole
            repository and lets its card say. Worth setting where the repository is large.
    """

    repo: str
    revision: str
    subset: str = ""
    split: str = "train"
    files: str = ""

    def __str__(self) -> str:
        subset = f"{self.subset}/" if self.subset else ""
        return f"{self.repo}@{self.revision[:8]} {subset}{self.split}"


def fetch(wanted: HubSet, *, cache: Path) -> Dataset:
    """The split, memory-mapped; `cache` holds what `datasets` converts.

    Raises:
        UserError: no network, no such repository, revision, subset or split, or no permission.
    """
    folder = _download(wanted)
    try:
        return _load(wanted, folder, cache)
    except (DatasetGenerationError, DatasetNotFoundError, ValueError, OSError) as error:
        said = " ".join(str(error.__cause__ or error).split())
        raise UserError(
            f"{wanted}: {said}; check `subset`, `split` and `files` of this source in params.yaml"
        ) from error


def _load(wanted: HubSet, folder: Path, cache: Path) -> Dataset:
    chosen: dict[str, Any] = {"split": wanted.split, "cache_dir": str(cache)}
    if wanted.files:
        # The card counts the rows of all files; these may be some of them.
        chosen["verification_mode"] = "no_checks"
        chosen["data_files"] = {wanted.split: wanted.files}
    return datasets.load_dataset(str(folder), wanted.subset or None, **chosen)


def _download(wanted: HubSet) -> Path:
    try:
        return _snapshot(wanted, local_files_only=False)
    except GatedRepoError as error:
        raise UserError(
            f"{wanted}: access has to be granted; accept the set's terms on its page and run "
            "`hf auth login`"
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise UserError(
            f"{wanted}: no such repository or revision on the Hub; check `hub` and `revision` of "
            "this source in params.yaml"
        ) from error
    except (httpx.HTTPError, OSError) as error:
        return _from_cache(wanted, error)


def _from_cache(wanted: HubSet, offline: Exception) -> Path:
    try:
        return _snapshot(wanted, local_files_only=True)
    except LocalEntryNotFoundError:
        raise UserError(
            f"{wanted}: not (all) in the Hub's cache, and the Hub cannot be reached; fetch it "
            f"where it can (`hf download {wanted.repo} --repo-type dataset "
            f"--revision {wanted.revision} --local-dir data/raw/NAME`), "
            "and give `path: data/raw/NAME/...` as the source in params.yaml"
        ) from offline


def _snapshot(wanted: HubSet, *, local_files_only: bool) -> Path:
    folder = huggingface_hub.snapshot_download(
        wanted.repo,
        repo_type="dataset",
        revision=wanted.revision,
        allow_patterns=[wanted.files] if wanted.files else None,
        local_files_only=local_files_only,
    )
    return Path(folder)
