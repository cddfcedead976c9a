"""Where problems come from: files under data/raw and sets on the Hugging Face Hub.

A path elsewhere is refused: `data/raw` is what the `prepare` stage depends on, so a file there that
is edited re-runs the stage, and one elsewhere would not. Only models that are measured outside the
pipeline, where nothing tracks files, may be measured on any path: provenance holds its hash.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import datasets
from datasets import Dataset, DatasetDict
from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError

from lib.artifacts import replacing
from lib.artifacts.hub import find, look_up, repository_of
from lib.artifacts.problems import Problem, read_problems
from lib.core.errors import UserError
from lib.core.plugins import is_plugin
from lib.params.data import (
    RAW,
    HubSource,
    KnownSource,
    PathSource,
    how_to_import,
    hub_splits,
    known_sets,
)
from lib.params.section import suggest
from lib.problems.adapters import ADAPTERS, Adapter, own_adapter
from lib.problems.rows import RawRow, RowFault, read_csv, read_json, read_table
from lib.problems.store import scratch_folder

READABLE = (".jsonl", ".json", ".csv", ".parquet", ".arrow")

PREPARED = Path("data/problems/benchmarks")

_SPLIT = re.compile(
    r"(?<![a-z])(train|training|test|testing|validation|valid|val|dev|eval)(?![a-z])"
)
"""The word of a file's name, or of a folder's, that says of which split it is."""

Content = TypeVar("Content")

Rows = Iterator[tuple[RawRow, Problem | RowFault]]
"""Every row of a source with the problem it holds, or what is wrong with it."""


def read_source(source: PathSource | HubSource | KnownSource, *, raw: Path = RAW) -> Rows:
    """The rows of a source of params; see `read_rows`."""
    for part in (source,) if isinstance(source, PathSource) else hub_splits(source):
        at = Path(part.path) if isinstance(part, PathSource) else part
        columns = {str(field): column for field, column in part.columns.items()}
        yield from read_rows(at, adapter=part.adapter, columns=columns, split=part.split, raw=raw)


def read_rows(
    at: Path | HubSource,
    *,
    adapter: str = "table",
    columns: Mapping[str, str] | None = None,
    split: str = "",
    raw: Path = RAW,
) -> Rows:
    """The rows of a file or folder under `raw`, or of a split on the Hub.

    Args:
        at: where they are.
        adapter: which of `ADAPTERS` reads them, or `plugins/file.py:name`.
        columns: record field to column, where the column table is not to decide.
        split: of a folder that holds several.
        raw: the folder that a path has to be in.

    Raises:
        UserError: a path that is missing or outside `raw`, an unknown adapter, or a Hub set that
            cannot be fetched.
    """
    reader = own_adapter(adapter) if is_plugin(adapter) else ADAPTERS[adapter]
    for row in _raw_rows(at, reader, split, raw):
        if isinstance(row.fields, RowFault):
            yield row, row.fields
            continue
        try:
            yield row, reader.convert(row.fields, columns or {}, row.origin)
        except RowFault as fault:
            yield row, fault


def _raw_rows(at: Path | HubSource, adapter: Adapter, split: str, raw: Path) -> Iterator[RawRow]:
    if isinstance(at, HubSource):
        with scratch_folder() as cache:
            yield from read_table(load_split(at, cache=cache), origin=hub_label(at))
        return
    for path in _files(at, split=split, raw=raw):
        match path.suffix:
            case ".jsonl" | ".json":
                yield from read_json(path)
            case ".csv":
                yield from read_csv(path, names=adapter.csv_names)
            case _:
                with scratch_folder() as cache:
                    yield from _arrow_rows(path, split, cache)


def _files(path: Path, *, split: str, raw: Path) -> list[Path]:
    """The files of a path source, in order of name: one, all below a folder, or an Arrow folder.

    Raises:
        UserError: outside data/raw, missing, nothing in it that can be read, or several splits
            and none named.
    """
    if not path.resolve().is_relative_to(raw.resolve()):
        raise UserError(how_to_import(path, raw=raw))
    if not path.exists():
        raise UserError(f"{path} is missing; put it there or change params.yaml")
    # What `save_to_disk` writes is one set, and no folder of files.
    if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
        return [path]
    candidates = [path] if path.is_file() else sorted(path.rglob("*"))
    # Hidden files are what tools keep beside a set.
    files = [
        file
        for file in candidates
        if file.suffix in READABLE
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    if not files:
        raise UserError(f"{path}: expected {', '.join(READABLE)}, or a folder of such")
    splits: dict[str, list[Path]] = {}
    for file in files:
        name = str(file.relative_to(path if path.is_dir() else path.parent))
        match = _SPLIT.search(name.lower())
        splits.setdefault(match[1] if match else "others", []).append(file)
    return _of_split(path, splits, split)


def _of_split(path: Path, splits: Mapping[str, Content], split: str) -> Content:
    if len(splits) == 1 and not split:
        return next(iter(splits.values()))
    if split in splits:
        return splits[split]
    # Read as one set, the test set would be trained on.
    fault = f"has no split `{split}`; it" if split else "has several splits: it"
    raise UserError(
        f"{path} {fault} holds {', '.join(splits)}; name one in `split:` of this source"
    )


def _arrow_rows(path: Path, split: str, cache: Path) -> Iterator[RawRow]:
    try:
        dataset = _load_arrow(path, split, cache)
    except (DatasetGenerationError, DatasetNotFoundError, OSError, ValueError) as error:
        cause = " ".join(str(error.__cause__ or error).split())
        detail = f"not a whole {path.suffix.lstrip('.') or 'Arrow'} file ({cause})"
        yield RawRow(str(path), 0, RowFault("unreadable", detail=detail))
        return
    yield from read_table(dataset, origin=str(path))


def _load_arrow(path: Path, split: str, cache: Path) -> Dataset:
    if path.suffix == ".parquet":
        return Dataset.from_parquet(str(path), cache_dir=str(cache))
    if path.suffix == ".arrow":
        return Dataset.from_file(str(path))
    loaded = datasets.load_from_disk(str(path))
    if isinstance(loaded, DatasetDict):
        return _of_split(path, loaded, split)
    return loaded


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkSet:
    """A benchmark for models that are measured outside the pipeline.

    Attributes:
        path: what it was read from.
        adapter: what read its rows; '' for the pipeline's own records.
        num_repeated: problems left out because they are there twice.
    """

    name: str
    path: Path
    adapter: str
    problems: tuple[Problem, ...]
    num_repeated: int


def find_benchmark(query: str, *, limit: int = 0) -> BenchmarkSet:
    """The benchmark that a reader calls `query`.

    Args:
        query: a benchmark that `prepare` wrote, a known set that `make benchmarks` fetched, a
            path, or `name=path` for a copy of a known set elsewhere.
        limit: so many problems, the same ones each time; 0 for all.

    Raises:
        UserError: no such set (tells how to get it), or a row that holds no problem.
    """
    name, path = _locate(query)
    adapter = adapter_of(name)
    own = path.parent == PREPARED
    problems = list(read_problems(path) if own else _whole_rows(path, adapter))
    unique: dict[str, Problem] = {}
    for problem in problems:
        unique.setdefault(problem.id, problem)
    kept = set(sorted(unique)[: limit or None])
    return BenchmarkSet(
        name=name,
        path=path,
        adapter="" if own else adapter,
        problems=tuple(problem for problem in unique.values() if problem.id in kept),
        num_repeated=len(problems) - len(unique),
    )


def _locate(query: str) -> tuple[str, Path]:
    name, is_named, text = query.partition("=")
    path = Path(text if is_named else query)
    if is_named or path.suffix or len(path.parts) > 1:
        if not path.exists():
            raise UserError(f"benchmark `{query}`: {path} is missing")
        # A name that can be part of a file's.
        slug = re.sub(r"[^a-z0-9_-]+", "_", (name if is_named else path.stem).lower())
        return slug.strip("_-") or "benchmark", path
    for folder in (PREPARED, RAW):
        if (file := folder / f"{name}.jsonl").is_file():
            return name, file
    if name in known_sets():
        raise UserError(
            f"benchmark `{name}`: {file} is missing; `make benchmarks SETS={name}` fetches it "
            f"from the Hub, and BENCHMARKS={name}=PATH reads a copy that is here already"
        )
    own = sorted(path.stem for path in PREPARED.glob("*.jsonl"))
    remedy = "" if own else "; `dvc repro prepare` makes those of params.yaml"
    names = suggest(name, [*own, *known_sets()])
    raise UserError(f"no benchmark `{name}`; {names} Any path will do too{remedy}")


def adapter_of(name: str) -> str:
    """What reads the rows of a public set, `table` for any other."""
    adapter: str = known_sets().get(name, {}).get("adapter", "table")
    return adapter


def _whole_rows(path: Path, adapter: str) -> Iterator[Problem]:
    for row, problem in read_rows(path, adapter=adapter, raw=Path("/")):
        if isinstance(problem, RowFault):
            raise UserError(f"{row.place}: {problem}; mend or remove the row")
        yield problem


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
