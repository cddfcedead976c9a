"""Sources of problems: files under data/raw and sets on the Hugging Face Hub.

Other paths are refused: the `prepare` stage depends on `data/raw`, so an edited file there re-runs
the stage, and a file elsewhere would not. Only `make evaluate`, outside the pipeline, reads any
path: its provenance holds the file's hash.
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
from lib.artifacts.hub import Repository, dataset_repository, find, look_up
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
from lib.problems.adapters import ADAPTERS, CSV_NAMES, own_adapter
from lib.problems.rows import RawRow, RowFault, read_arrow_rows, read_csv_rows, read_json_rows
from lib.problems.store import scratch_folder

FILE_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")

BENCHMARKS_FOLDER = Path("data/problems/benchmarks")

# "test/algebra.jsonl", "gsm8k_train.csv". Not between letters: `latest.csv` is no test split.
_SPLIT = re.compile(
    r"(?<![a-z])(train|training|test|testing|validation|valid|val|dev|eval)(?![a-z])"
)
"""The word for the split in a file's or folder's name."""

_LOADING_ERRORS = (DatasetGenerationError, DatasetNotFoundError, OSError, ValueError)
"""Errors of `datasets` for files that it cannot read, and for a wrong subset or split."""

Content = TypeVar("Content")
"""A split's files, or its loaded set."""

SourceRows = Iterator[tuple[RawRow, Problem | RowFault]]
"""Rows of a source, each with its problem or its fault."""


def read_source(source: PathSource | HubSource | KnownSource, *, raw: Path = RAW) -> SourceRows:
    """Yield the rows of a source in params; see `read_rows`."""
    # A set on the Hub is one or more splits, read one after the other.
    for part in (source,) if isinstance(source, PathSource) else hub_splits(source):
        yield from read_rows(
            Path(part.path) if isinstance(part, PathSource) else part,
            adapter=part.adapter,
            columns=part.columns,
            split=part.split,
            raw=raw,
        )


def read_rows(
    at: Path | HubSource,
    *,
    adapter: str = "table",
    columns: Mapping[Any, str] | None = None,
    split: str = "",
    raw: Path = RAW,
) -> SourceRows:
    """Yield each row of a file or folder under `raw`, or of a split on the Hub, and its problem.

    The fault of a row is in the problem's place.

    Args:
        at: the path, or the split on the Hub.
        adapter: a name of `ADAPTERS`, or `plugins/adapters/file.py:name`.
        columns: the source's column for each field of a problem, such as `problem: question`.
            Fields not named here use the adapter's usual columns; those of `table` are in
            `lib.problems.columns`.
        split: one of a folder's splits.
        raw: the folder of all path sources.

    Raises:
        UserError: a path is missing or outside `raw`, or a Hub set cannot be fetched.
    """
    convert = own_adapter(adapter) if is_plugin(adapter) else ADAPTERS[adapter]
    for row in _raw_rows(at, adapter, split, raw):
        # The file's reader could not parse the row: the fault is in place of its fields.
        if isinstance(row.fields, RowFault):
            yield row, row.fields
            continue
        try:
            yield row, convert(row.fields, columns or {})
        except RowFault as fault:
            yield row, fault


def _raw_rows(at: Path | HubSource, adapter: str, split: str, raw: Path) -> Iterator[RawRow]:
    """Yield a source's rows before conversion, read by the Hub's or the file suffix's reader."""
    if isinstance(at, HubSource):
        yield from _hub_rows(at)
        return
    for path in _files(at, split=split, raw=raw):
        match path.suffix:
            case ".jsonl" | ".json":
                yield from read_json_rows(path)
            case ".csv":
                # Names for a file without a header; () reads them from its first line.
                yield from read_csv_rows(path, names=CSV_NAMES.get(adapter, ()))
            # A `.parquet` file, or an Arrow folder.
            case _:
                yield from _arrow_rows(path, split)


def _files(path: Path, *, split: str, raw: Path) -> list[Path]:
    """Return the files of a path source, sorted by name.

    These are the file itself, all files of a folder, or an Arrow folder as one.

    Raises:
        UserError: the path is outside data/raw, missing, without a readable file, or has several
            splits and params name none.
    """
    _refuse_links(path, raw=raw)
    if not path.exists():
        raise UserError(f"{path} is missing; put it there or change params.yaml")
    # A folder written by `save_to_disk` is one set, not a folder of source files.
    if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
        return [path]
    splits: dict[str, list[Path]] = {}
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        below = file.relative_to(path.parent if path.is_file() else path)
        # Hidden files and folders (.git, .cache) belong to tools and hold no data.
        hidden = path.is_dir() and any(part.startswith(".") for part in below.parts)
        if file.suffix in FILE_SUFFIXES and not hidden:
            _refuse_links(file, raw=raw)
            # The split is named by a word like "train" or "test" in the path below the source, so
            # that a folder `test/` counts too.
            match = _SPLIT.search(str(below).lower())
            # Files whose path has no such word form the split "others".
            splits.setdefault(match[1] if match else "others", []).append(file)
    if not splits:
        raise UserError(f"{path}: expected {', '.join(FILE_SUFFIXES)}, or a folder of such")
    return _select_split(path, splits, split)


def _refuse_links(path: Path, *, raw: Path) -> None:
    """Refuse a broken link, and a path outside of `raw`, also through a link.

    Raises:
        UserError: names the path, and how to import it.
    """
    if path.is_symlink() and not path.exists():
        raise UserError(f"{path} is a broken link; remove it")
    # DVC hashes data/raw only: no stage would depend on the target of a link to elsewhere.
    if not path.resolve().is_relative_to(raw.resolve()):
        raise UserError(how_to_import(path))


def _select_split(path: Path, splits: Mapping[str, Content], split: str) -> Content:
    """Return the named split, or the only one if `split` is ''.

    Raises:
        UserError: there is no such split, or there are several and none is named.
    """
    if len(splits) == 1 and not split:
        return next(iter(splits.values()))
    if split in splits:
        return splits[split]
    # Refused, since all splits as one set would train on the test set.
    fault = f"has no split `{split}`; it" if split else "has several splits: it"
    raise UserError(
        f"{path} {fault} holds {', '.join(splits)}; name one in `split:` of this source"
    )


def _arrow_rows(path: Path, split: str) -> Iterator[RawRow]:
    """Yield the rows of a Parquet file, or of a folder that `save_to_disk` wrote.

    A damaged one is a single fault.
    """
    with scratch_folder() as cache:
        try:
            if path.suffix == ".parquet":
                loaded = Dataset.from_parquet(str(path), cache_dir=str(cache))
            else:
                loaded = datasets.load_from_disk(str(path))
        except _LOADING_ERRORS as error:
            detail = f"not a whole {path.suffix.lstrip('.') or 'Arrow'} file ({_cause(error)})"
            yield RawRow(str(path), 0, RowFault("unreadable", detail=detail))
            return
        # Several sets in one folder are a DatasetDict.
        rows = _select_split(path, loaded, split) if isinstance(loaded, DatasetDict) else loaded
        yield from read_arrow_rows(rows, origin=str(path))


def _cause(error: Exception) -> str:
    """Return the cause of one of `_LOADING_ERRORS` on one line."""
    return " ".join(str(error.__cause__ or error).split())


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkSet:
    """A benchmark for models from outside the pipeline.

    Attributes:
        path: its file or folder.
        adapter: the adapter of its rows; '' for the pipeline's own records.
        num_repeated: number of rows left out, since they repeat a problem.
    """

    name: str
    path: Path
    adapter: str
    problems: tuple[Problem, ...]
    num_repeated: int


def find_benchmark(query: str, *, limit: int = 0) -> BenchmarkSet:
    """Find the benchmark that `query` names.

    Args:
        query: a benchmark that `prepare` wrote, a known set that `make benchmarks` fetched, a
            path, or `name=path` for a copy of a known set elsewhere.
        limit: number of problems, the same ones each time; 0 for all.

    Raises:
        UserError: no such set (with the command that gets it), or a row without a problem.
    """
    name, path = _locate(query)
    adapter = adapter_of(name)
    own = path.parent == BENCHMARKS_FOLDER
    problems = list(read_problems(path) if own else _whole_rows(path, adapter))
    unique: dict[str, Problem] = {}
    for problem in problems:
        unique.setdefault(problem.id, problem)
    # Ids are content hashes: the first ones in order are a fixed random sample.
    kept = set(sorted(unique)[: limit or None])
    return BenchmarkSet(
        name=name,
        path=path,
        adapter="" if own else adapter,
        problems=tuple(problem for problem in unique.values() if problem.id in kept),
        num_repeated=len(problems) - len(unique),
    )


def _locate(query: str) -> tuple[str, Path]:
    """Return a benchmark's name, valid in a file name, and its path (see `find_benchmark`).

    Raises:
        UserError: no such set.
    """
    # `is_named` is "=" or ''.
    name, is_named, text = query.partition("=")
    path = Path(text if is_named else query)
    if is_named or path.suffix or len(path.parts) > 1:
        if not path.exists():
            raise UserError(f"benchmark `{query}`: {path} is missing")
        # Outputs are named after the benchmark, so its name has to be valid in a file name.
        slug = re.sub(r"[^a-z0-9_-]+", "_", (name if is_named else path.stem).lower())
        return slug.strip("_-") or "benchmark", path
    # The pipeline's own set comes before a fetched one of the same name.
    for folder in (BENCHMARKS_FOLDER, RAW):
        if (file := folder / f"{name}.jsonl").is_file():
            return name, file
    # After the loop, `file` is the path below data/raw.
    if name in known_sets():
        raise UserError(
            f"benchmark `{name}`: {file} is missing; `make benchmarks SETS={name}` fetches it "
            f"from the Hub, and BENCHMARKS={name}=PATH reads a copy that is here already"
        )
    own = sorted(path.stem for path in BENCHMARKS_FOLDER.glob("*.jsonl"))
    raise UserError(
        f"no benchmark `{name}` in {BENCHMARKS_FOLDER}, where `dvc repro prepare` writes the sets "
        f"of params.yaml; any path will do too, {suggest(name, [*own, *known_sets()])}"
    )


def adapter_of(name: str) -> str:
    """Return the adapter of a public set, `table` for any other."""
    adapter: str = known_sets().get(name, {}).get("adapter", "table")
    return adapter


def _whole_rows(path: Path, adapter: str) -> Iterator[Problem]:
    """Yield a benchmark's problems.

    Raises:
        UserError: a row gives no problem.
    """
    # raw="/" allows any path, since no stage depends on this file.
    for row, problem in read_rows(path, adapter=adapter, raw=Path("/")):
        if isinstance(problem, RowFault):
            raise UserError(f"{row.place}: {problem}; mend or remove the row")
        yield problem


def _hub_rows(source: HubSource, *, elsewhere: str = Repository.elsewhere) -> Iterator[RawRow]:
    """Yield the rows of a split on the Hub.

    Args:
        elsewhere: remedy in the error on a machine without access to the Hub.

    Raises:
        UserError: no network, no such repository, revision, subset or split, or no permission.
    """
    folder = find(dataclasses.replace(dataset_repository(**source.place), elsewhere=elsewhere))
    subset = f"{source.subset}/" if source.subset else ""
    label = f"{source.hub}@{source.revision[:8]} {subset}{source.split}"
    options: dict[str, Any] = {}
    if source.files:
        # The card's row count covers all files, and `files` may select some of them.
        options["verification_mode"] = "no_checks"
        options["data_files"] = {source.split: source.files}
    # `datasets` converts the files into the cache, and memory-maps them there.
    with scratch_folder() as cache:
        try:
            rows = datasets.load_dataset(
                str(folder),
                source.subset or None,
                split=source.split,
                cache_dir=str(cache),
                **options,
            )
        except _LOADING_ERRORS as error:
            raise UserError(
                f"{label}: {_cause(error)}; check `subset`, `split` and `files` of this source in "
                "params.yaml"
            ) from error
        yield from read_arrow_rows(rows, origin=label)


def fetch_known(name: str, folder: Path) -> tuple[Path, int]:
    """Write a known set's raw rows to `<folder>/<name>.jsonl`; return path and number of rows.

    Raises:
        UserError: no such set, or the Hub cannot be reached.
    """
    if name not in known_sets():
        raise UserError(f"no set `{name}`; there are {', '.join(known_sets())}")
    splits = hub_splits(KnownSource(known=name, limit="all"))
    if not splits[0].revision:
        # All splits share one repository; its branch is read at its present commit.
        commit, _ = look_up(dataset_repository(**splits[0].place))
        splits = tuple(split.model_copy(update={"revision": commit}) for split in splits)
    path = folder / f"{name}.jsonl"
    # The end of the error "the Hub cannot be reached; ...".
    elsewhere = f"run `make benchmarks SETS={name}` where it can be, and bring {path} here"
    count = 0
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as lines:
        for row in (row for split in splits for row in _hub_rows(split, elsewhere=elsewhere)):
            if isinstance(row.fields, RowFault):
                raise UserError(f"{row.place}: {row.fields}")
            # default=str: Arrow has dates and decimals, JSON has not.
            lines.write(json.dumps(row.fields, ensure_ascii=False, default=str) + "\n")
            count += 1
    return path, count
