"""Sources of problems: files under data/raw and sets on the Hugging Face Hub.

Other paths are refused: the `prepare` stage depends on `data/raw`, so an edited file there re-runs
the stage, and a file elsewhere would not. Only `./reckon evaluate`, outside the pipeline, reads any
path: its provenance holds the file's hash.
"""

import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import datasets
import yaml
from datasets import DatasetDict
from datasets.exceptions import DatasetsError
from huggingface_hub import DatasetCard
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from lib.artifacts.problems import Problem
from lib.core.errors import UserError
from lib.core.plugins import is_plugin
from lib.models.hub import Repository, dataset_repository, find
from lib.params.data import (
    RAW,
    AnySource,
    HubSource,
    KnownSource,
    PathSource,
    how_to_import,
    hub_splits,
)
from lib.problems.adapters import ADAPTERS, COLUMNS, CSV_NAMES, own_adapter
from lib.problems.columns import cleaned_labels
from lib.problems.rows import (
    BATCH,
    NUM_LAST,
    RawRow,
    RowFault,
    arrow_rows,
    last_rows,
    read_csv_rows,
    read_json_rows,
    read_parquet_rows,
)

FILE_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".parquet")

# "test/algebra.jsonl", "gsm8k_train.csv". Not between letters: `latest.csv` is no test split.
_SPLIT = re.compile(
    r"(?<![a-z])(train|training|test|testing|validation|valid|val|dev|eval)(?![a-z])"
)
"""The word for the split in a file's or folder's name."""

_LOADING_ERRORS = (DatasetsError, OSError, ValueError)
"""Errors of `datasets` for files that it cannot read, and for a wrong subset or split."""

Content = TypeVar("Content")
"""A split's files, or its loaded set."""

SourceRows = Iterator[tuple[RawRow, Problem | RowFault]]
"""Rows of a source, each with its problem or its fault."""


def read_source(source: PathSource | HubSource | KnownSource, *, raw: Path = RAW) -> SourceRows:
    """Yield each row of a source in params, with its problem or its fault.

    Raises:
        UserError: a path is missing or outside `raw`, or a Hub set cannot be fetched.
    """
    # `hub_splits` lists the splits on the Hub that make up a known set, or a `HubSource` itself, to
    # be read one after the other. A path source is no set on the Hub.
    for part in (source,) if isinstance(source, PathSource) else hub_splits(source):
        yield from read_rows(
            Path(part.path) if isinstance(part, PathSource) else part,
            adapter=part.adapter,
            columns=part.columns,
            split=part.split,
            raw=raw,
        )


def edge_rows(source: PathSource | HubSource | KnownSource, *, raw: Path = RAW) -> SourceRows:
    """Yield the first and the last rows of a source, and those of each of its files.

    Raises:
        UserError: as `read_source`.
    """
    for part in (source,) if isinstance(source, PathSource) else hub_splits(source):
        if isinstance(part, PathSource):
            files = _files(Path(part.path), split=part.split, raw=raw)
        else:
            files = _hub_files(part, find(dataset_repository(**part.place)), str(part.hub))
        read = functools.partial(_file_rows, names=CSV_NAMES.get(part.adapter, ()))
        for path in files:
            if path.is_dir():
                rows: Iterator[RawRow] = itertools.islice(_saved_rows(path, part.split), NUM_LAST)
            else:
                ends = itertools.chain(
                    itertools.islice(read(path), NUM_LAST), last_rows(read, path)
                )
                # A short file has the same rows at both ends.
                rows = iter({row.place: row for row in ends}.values())
            yield from _converted(rows, part.adapter, part.columns)


def source_label(source: AnySource) -> str:
    """Return a source's name for messages: its path, its name, or "openai/gsm8k test"."""
    match source:
        case PathSource():
            return source.path
        case KnownSource():
            return source.known
        case HubSource():
            return f"{source.hub} {source.split}"
    return f"generator {source.generator}"


def read_rows(
    at: Path | HubSource,
    *,
    adapter: str = "table",
    columns: Mapping[Any, str] | None = None,
    split: str = "",
    raw: Path = RAW,
) -> SourceRows:
    """Yield each row of a path under `raw`, or of a Hub split, with its problem or its fault.

    Args:
        at: the path, or the split on the Hub.
        adapter: a name of `ADAPTERS`, or `plugins/adapters/file.py:name`.
        columns: field of a problem → the source's column, such as {"problem": "question"}. For
            fields without an entry, the adapter knows the column.
        split: one of a folder's splits; '' if it has only one.
        raw: the folder of all path sources.

    Raises:
        UserError: a path is missing or outside `raw`, or a Hub set cannot be fetched.
    """
    columns = columns or {}
    # Some adapters know the columns of CSV files without a header.
    names = CSV_NAMES.get(adapter, ())
    # "reward_model.ground_truth" is a field of the column "reward_model".
    tops = {column.split(".")[0] for column in columns.values()}
    used = frozenset() if is_plugin(adapter) else COLUMNS | {*columns.values()} | tops
    if isinstance(at, HubSource):
        parts = iter([hub_rows(at, columns=used)])
    else:
        parts = (
            _saved_rows(path, split)
            if path.is_dir()
            else _file_rows(path, names=names, columns=used)
            for path in _files(at, split=split, raw=raw)
        )
    yield from _converted(itertools.chain.from_iterable(parts), adapter, columns)


def _converted(rows: Iterable[RawRow], adapter: str, columns: Mapping[Any, str]) -> SourceRows:
    convert = own_adapter(adapter) if is_plugin(adapter) else ADAPTERS[adapter]
    for row in rows:
        # A row that the reader could not parse has its fault in place of the fields.
        if isinstance(row.fields, RowFault):
            yield row, row.fields
            continue
        try:
            problem: Problem | RowFault = convert(row.fields, columns)
        except RowFault as fault:
            problem = fault
        if cleaned := cleaned_labels(row.fields, columns):
            row = dataclasses.replace(row, cleaned=cleaned)
        yield row, problem


def _file_rows(
    path: Path, *, names: Sequence[str] = (), columns: Collection[str] = ()
) -> Iterator[RawRow]:
    """Yield the rows of a file of `FILE_SUFFIXES`.

    Args:
        names: columns of a CSV file without a header; () reads them from its first line.
        columns: the columns to read of a Parquet file; () for all.
    """
    if _is_pointer(path):
        detail = "a pointer of Git LFS, not the file; run `git lfs pull` where it is from"
        yield RawRow(str(path), 0, RowFault("unreadable", detail=detail))
    elif path.suffix == ".parquet":
        yield from read_parquet_rows(path, columns=columns)
    elif path.suffix == ".csv":
        yield from read_csv_rows(path, names=names)
    else:
        yield from read_json_rows(path)


def _is_pointer(path: Path) -> bool:
    """Return True if Git LFS left its pointer in place of the file."""
    with contextlib.suppress(OSError), path.open("rb") as content:
        return content.read(40).startswith(b"version https://git-lfs.github.com/")
    return False


def _files(path: Path, *, split: str, raw: Path) -> list[Path]:
    """Return the files of one split of a path source, sorted by name.

    The path may be one file, a folder of files, or an Arrow folder, which is returned as it is.

    Args:
        split: the word in the files' names, such as "test"; '' if there is only one split.

    Raises:
        UserError: the path is outside data/raw, missing, without a readable file, or has several
            splits and params name none.
    """
    _refuse_outside(path, raw=raw)
    if not path.exists():
        raise UserError(f"{path} is missing; put it there or change params.yaml")
    # A folder written by `save_to_disk` is one set, not a folder of source files.
    if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
        return [path]
    # Word for the split → its files.
    splits: dict[str, list[Path]] = {}
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        # The file's path inside the source's folder. Words above that folder name no split.
        below = file.relative_to(path.parent if path.is_file() else path)
        # Hidden files and folders (.git, .cache) belong to tools and hold no data.
        hidden = path.is_dir() and any(part.startswith(".") for part in below.parts)
        # Spark writes a folder `math.parquet` of files.
        if file.suffix in FILE_SUFFIXES and not hidden and not file.is_dir():
            # Again for each file: one may be a link to a file outside.
            _refuse_outside(file, raw=raw)
            # "test/algebra.jsonl" and "eval/gsm8k_test.csv" -> "test": the last such word counts. A
            # path without one is in the split "others".
            word = ["others", *_SPLIT.findall(str(below).lower())][-1]
            splits.setdefault(word, []).append(file)
    if not splits:
        raise UserError(f"{path}: expected {', '.join(FILE_SUFFIXES)}, or a folder of such")
    return _select_split(path, splits, split)


def _refuse_outside(path: Path, *, raw: Path) -> None:
    """Refuse a broken link, and a path that is or leads outside of `raw`.

    Raises:
        UserError: names the path, and how to import it.
    """
    if path.is_symlink() and not path.exists():
        raise UserError(f"{path} is a broken link; remove it")
    # `resolve` follows links. DVC hashes data/raw only: an edit of a file elsewhere would re-run no
    # stage. Files of DVC's cache (`cache.type symlink`) are named by their content.
    target = path.resolve()
    in_cache = re.search(r"/files/md5/[0-9a-f]{2}/[0-9a-f]{30}$", target.as_posix())
    if not (in_cache or target.is_relative_to(raw.resolve())):
        raise UserError(how_to_import(path))


def _select_split(path: Path, splits: Mapping[str, Content], split: str) -> Content:
    """Return the split named `split`, or the only one if `split` is ''.

    Args:
        path: the source, for errors.
        splits: name of each split → its files, or its loaded rows.

    Raises:
        UserError: there is no such split, or there are several and none is named.
    """
    if len(splits) == 1 and not split:
        return next(iter(splits.values()))
    if split in splits:
        return splits[split]
    # Not all splits together: that would train on the test set.
    fault = f"has no split `{split}`; it" if split else "has several splits: it"
    raise UserError(
        f"{path} {fault} holds {', '.join(splits)}; name one in `split:` of this source"
    )


def _saved_rows(path: Path, split: str) -> Iterator[RawRow]:
    """Yield the rows of a folder that `save_to_disk` wrote.

    A folder that cannot be read gives one row with a fault, and no other.

    Args:
        split: one of the folder's splits; '' if it has only one.
    """
    try:
        loaded = datasets.load_from_disk(str(path))
    except _LOADING_ERRORS as error:
        # The number 0: the whole folder is at fault.
        detail = f"not a whole Arrow file ({_cause(error)})"
        yield RawRow(str(path), 0, RowFault("unreadable", detail=detail))
        return
    # A folder with several splits is loaded as a DatasetDict, split → rows.
    rows = _select_split(path, loaded, split) if isinstance(loaded, DatasetDict) else loaded
    yield from arrow_rows(rows.with_format("arrow").iter(BATCH), origin=str(path))


def _cause(error: Exception) -> str:
    return " ".join(str(error.__cause__ or error).split())


def hub_rows(
    source: HubSource, *, columns: Collection[str] = (), elsewhere: str = Repository.elsewhere
) -> Iterator[RawRow]:
    """Yield the rows of a split on the Hub, from data/hub, the Hub's cache, or by download.

    Args:
        columns: the columns to read of Parquet files; () for all.
        elsewhere: the end of the error "the Hub cannot be reached; ...". The default names
            `make fetch`.

    Raises:
        UserError: no network, no such repository, revision, subset or split, no permission, or a
            file outside of the repository.
    """
    # `place`: name, revision and files of the repository. `find` returns the folder with the files,
    # downloaded if they are not here; its error ends with `elsewhere`.
    folder = find(dataclasses.replace(dataset_repository(**source.place), elsewhere=elsewhere))
    subset = f"{source.subset}/" if source.subset else ""
    # "openai/gsm8k@0123abcd main/test", for messages.
    label = f"{source.hub}@{source.revision[:8]} {subset}{source.split}"
    rows = itertools.chain.from_iterable(
        _file_rows(path, columns=columns) for path in _hub_files(source, folder, label)
    )
    for number, row in enumerate(rows, start=1):
        yield dataclasses.replace(row, origin=label, number=number)


def _hub_files(source: HubSource, folder: Path, label: str) -> list[Path]:
    """Return the files of a split, as the repository's card or its file names have them.

    The card is a stranger's: a path or link that leaves the folder, a URL, and a file that would
    have to be unpacked are refused.

    Args:
        label: the split's name in messages.

    Raises:
        UserError: one of these, or no such subset or split.
    """
    for pattern in _card_patterns(folder, label):
        if re.search(r"::|:/|^[~/\\]", pattern) or ".." in Path(pattern).parts:
            raise UserError(f"{label}: its card names `{pattern}`, which is not in the repository")
    # Of several files for one split, params name some.
    options = {"data_files": {source.split: source.files}} if source.files else {}
    try:
        builder = datasets.load_dataset_builder(str(folder), source.subset or None, **options)
        splits: Mapping[str, Sequence[str]] = builder.config.data_files or {}
        names = splits[source.split]
    except (*_LOADING_ERRORS, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{label}: {_cause(error)}; check `subset`, `split` and `files` of this source in "
            "params.yaml"
        ) from error
    # The Hub's cache has links to its blobs.
    roots = [folder.resolve(), folder.resolve().parents[1] / "blobs"]
    paths = []
    for path in map(Path, names):
        if not any(path.resolve().is_relative_to(root) for root in roots):
            raise UserError(f"{label}: {path} leads out of the repository")
        if path.suffix not in FILE_SUFFIXES:
            expected = ", ".join(FILE_SUFFIXES)
            raise UserError(f"{label}: {path.name} is not read from the Hub; expected {expected}")
        paths.append(path)
    return paths


def _card_patterns(folder: Path, label: str) -> Iterator[str]:
    """Yield every path in the `configs` of a repository's card, README.md or .huggingface.yaml.

    Raises:
        UserError: a card is no YAML.
    """
    readme, own = folder / "README.md", folder / ".huggingface.yaml"
    cards: list[Any] = []
    try:
        if readme.is_file():
            # The parser that `datasets` has for it.
            text = readme.read_text("utf-8", "replace")
            cards.append(vars(DatasetCard(text).data))
        if own.is_file():
            cards.append(YAML(typ="safe").load(own.read_text("utf-8", "replace")))
    # ValueError: also of the hub's client, for a card that is no mapping.
    except (yaml.YAMLError, YAMLError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{label}: its card is not valid YAML") from error
    for card_content in cards:
        configs = card_content.get("configs") if isinstance(card_content, dict) else None
        pending = [configs]
        while pending:
            each = pending.pop()
            if isinstance(each, str):
                yield each
            elif isinstance(each, dict | list):
                pending += each.values() if isinstance(each, dict) else each
