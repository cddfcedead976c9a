"""Splits of sets on the Hugging Face Hub, and public sets as files under data/raw."""

import json
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset
from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError

from lib.artifacts import replacing
from lib.artifacts.hub import find, look_up, repository_of
from lib.core.errors import UserError
from lib.params.data import HubSource, KnownSource, hub_splits, known_sets
from lib.problems.rows import RowFault, read_table
from lib.problems.store import scratch_folder


def hub_label(source: HubSource) -> str:
    """What messages call a split on the Hub: "owner/name@revision subset/split"."""
    subset = f"{source.subset}/" if source.subset else ""
    return f"{source.hub}@{source.revision[:8]} {subset}{source.split}"


def load_split(source: HubSource, *, cache: Path) -> Dataset:
    """The split, memory-mapped; `cache` holds what `datasets` converts.

    Raises:
        UserError: no network, no such repository, revision, subset or split, or no permission.
    """
    folder = find(repository_of(source))
    options: dict[str, Any] = {"split": source.split, "cache_dir": str(cache)}
    if source.files:
        # The card counts the rows of all files; these may be some of them.
        options["verification_mode"] = "no_checks"
        options["data_files"] = {source.split: source.files}
    try:
        return datasets.load_dataset(str(folder), source.subset or None, **options)
    except (DatasetGenerationError, DatasetNotFoundError, ValueError, OSError) as error:
        cause = " ".join(str(error.__cause__ or error).split())
        raise UserError(
            f"{hub_label(source)}: {cause}; check `subset`, `split` and `files` of this source in "
            "params.yaml"
        ) from error


def fetch_known(name: str, folder: Path) -> tuple[Path, int]:
    """Write a set's rows, as they are, to `<folder>/<name>.jsonl`; returns the path and how many.

    Raises:
        UserError: no such set, or the Hub cannot be reached.
    """
    if name not in known_sets():
        raise UserError(f"no set `{name}`; there are {', '.join(known_sets())}")
    splits = hub_splits(KnownSource(known=name, limit="all"))
    if not splits[0].revision:
        # All are of one repository, whose branch is read as it is now.
        commit, _ = look_up(repository_of(splits[0]))
        splits = tuple(split.model_copy(update={"revision": commit}) for split in splits)
    path = folder / f"{name}.jsonl"
    count = 0
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as lines:
        for source in splits:
            with scratch_folder() as cache:
                for row in read_table(load_split(source, cache=cache), origin=hub_label(source)):
                    if isinstance(row.fields, RowFault):
                        raise UserError(f"{row.place}: {row.fields}")
                    lines.write(json.dumps(row.fields, ensure_ascii=False, default=str) + "\n")
                    count += 1
    return path, count
