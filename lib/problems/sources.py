"""Where problems come from: files under data/raw and sets on the Hugging Face Hub.

A path elsewhere is refused: `data/raw` is what the `prepare` stage depends on, so a file there that
is edited re-runs the stage, and one elsewhere would not.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

import datasets
from datasets import Dataset, DatasetDict
from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError

from lib.errors import UserError
from lib.problems.adapters import ADAPTERS, Adapter
from lib.problems.hub import HubSet, fetch
from lib.problems.places import RAW, how_to_import, scratch_folder
from lib.problems.rows import (
    RawRow,
    RowFault,
    read_csv,
    read_json,
    read_jsonl,
    read_table,
)
from lib.problems.schema import Problem

READABLE = (".jsonl", ".json", ".csv", ".parquet", ".arrow")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """One set of rows.

    Attributes:
        at: a file or folder under data/raw, or a set on the Hub.
        adapter: which of `ADAPTERS` reads its rows.
        columns: record field to column, where the column table is not to decide.
    """

    at: Path | HubSet
    adapter: str = "table"
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def label(self) -> str:
        return str(self.at)


def read_problems_of(
    source: Source, *, raw: Path = RAW
) -> Iterator[tuple[RawRow, Problem | RowFault]]:
    """Every row of a source with the problem it holds, or what is wrong with it.

    Raises:
        UserError: a path that is missing or outside data/raw, an unknown adapter, or a Hub set that
            cannot be fetched.
    """
    if source.adapter not in ADAPTERS:
        raise UserError(
            f"{source.label}: no adapter `{source.adapter}`; there are {', '.join(ADAPTERS)}"
        )
    adapter = ADAPTERS[source.adapter]
    for row in _rows(source.at, adapter, raw):
        yield row, _convert(row, adapter, source.columns)


def _convert(row: RawRow, adapter: Adapter, columns: Mapping[str, str]) -> Problem | RowFault:
    if isinstance(row.fields, RowFault):
        return row.fields
    try:
        return adapter.convert(row.fields, columns, row.origin)
    except RowFault as fault:
        return fault


def _rows(at: Path | HubSet, adapter: Adapter, raw: Path) -> Iterator[RawRow]:
    if isinstance(at, HubSet):
        with scratch_folder() as cache:
            yield from read_table(fetch(at, cache=cache), origin=str(at))
    else:
        for path in find_files(at, raw=raw):
            yield from _rows_of_file(path, adapter)


def find_files(path: Path, *, raw: Path = RAW) -> list[Path]:
    """The files of a path source, in order of name: one file, a folder's, or one Arrow folder.

    Raises:
        UserError: outside data/raw, missing, or nothing in it that can be read.
    """
    if not path.resolve().is_relative_to(raw.resolve()):
        raise UserError(f"prepare: {how_to_import(path, raw=raw)}")
    if not path.exists():
        raise UserError(f"prepare: {path} is missing; put it there or change params.yaml")
    if path.is_file() or _is_arrow_folder(path):
        files = [path]
    else:
        files = sorted(file for file in path.iterdir() if file.suffix in READABLE)
    if not files or (files == [path] and path.is_file() and path.suffix not in READABLE):
        raise UserError(f"prepare: {path}: expected {', '.join(READABLE)}, or a folder of such")
    return files


def _is_arrow_folder(path: Path) -> bool:
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def _rows_of_file(path: Path, adapter: Adapter) -> Iterator[RawRow]:
    match path.suffix:
        case ".jsonl":
            yield from read_jsonl(path)
        case ".json":
            yield from read_json(path)
        case ".csv":
            yield from read_csv(path, names=adapter.csv_names)
        case _:
            with scratch_folder() as cache:
                yield from _arrow_rows(path, cache)


def _arrow_rows(path: Path, cache: Path) -> Iterator[RawRow]:
    try:
        dataset = _load_arrow(path, cache)
    except (DatasetGenerationError, DatasetNotFoundError, OSError, ValueError) as error:
        cause = error.__cause__ or error
        said = " ".join(str(cause).split())
        detail = f"not a whole {path.suffix.lstrip('.') or 'Arrow'} file ({said})"
        yield RawRow(str(path), 0, RowFault("unreadable", field="", detail=detail))
        return
    yield from read_table(dataset, origin=str(path))


def _load_arrow(path: Path, cache: Path) -> Dataset:
    if path.suffix == ".parquet":
        return datasets.load_dataset(
            "parquet", data_files=str(path), split="train", cache_dir=cache
        )
    if path.suffix == ".arrow":
        return Dataset.from_file(str(path))
    loaded = datasets.load_from_disk(str(path))
    if isinstance(loaded, DatasetDict):
        raise UserError(
            f"prepare: {path} holds the splits {', '.join(loaded)}; name the folder of one"
        )
    return loaded
