"""Files that stages exchange, written so that the same content has the same bytes."""

import csv
import functools
import glob
import hashlib
import importlib.metadata
import json
import math
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
from ruamel.yaml import YAML

from lib.core.errors import UserError
from lib.core.plugins import plugin_hashes

Record = TypeVar("Record")

ROOT = Path(__file__).resolve().parents[2]

SCRATCH = Path("data/scratch")
"""Checkpoints to resume from, and what else no stage reads."""

METRIC_DIGITS = 6
"""Decimals that metrics keep: far below any standard error, above rounding noise."""

VERSIONED = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers")


def write_metrics(path: Path, metrics: Mapping[str, Any]) -> None:
    """Write comparable numbers: sorted keys, fixed precision, nothing but numbers.

    What qualifies them is in lists: DVC compares numbers, and passes over lists (`unlisted`).

    Raises:
        ValueError: a value that is no finite number.
    """
    write_json(path, _numbers(metrics))


def _numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            checked[key] = _numbers(value)
        elif isinstance(value, list):
            checked[key] = [_numbers(each) if isinstance(each, Mapping) else each for each in value]
        elif isinstance(value, int | float) and math.isfinite(value):
            checked[key] = round(value, METRIC_DIGITS)
        else:
            raise ValueError(f"metric {key} must be a finite number, got {value!r}")
    return checked


def unlisted(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics with what a list keeps from `dvc metrics diff` beside the rest again."""
    flat: dict[str, Any] = {}
    for key, value in metrics.items():
        if isinstance(value, list):
            flat |= value[0]
        else:
            flat[key] = unlisted(value) if isinstance(value, Mapping) else value
    return flat


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON with sorted keys, whole or not at all."""
    with replacing(path) as partial:
        text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
        partial.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Parse one JSON file.

    Raises:
        UserError: missing, or no JSON; names the file.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError) as error:
        problem = "no such file" if isinstance(error, FileNotFoundError) else f"not JSON ({error})"
        raise UserError(
            f"{path}: {problem}; the stage that writes it does so again on `dvc repro`"
        ) from error


@contextmanager
def jsonl_writer(path: Path) -> Iterator[Callable[[Mapping[str, Any]], object]]:
    """A function that writes one JSON object a line; the file is there whole or not at all."""
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as lines:
        yield lambda row: lines.write(json.dumps(row, ensure_ascii=False) + "\n")


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line, whole or not at all."""
    with jsonl_writer(path) as write:
        for row in rows:
            write(row)


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Parse one JSON object a line."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def read_records(
    path: Path, parse: Callable[[Any], Record], *, what: str, remedy: str
) -> Iterator[Record]:
    """Parse one record a line.

    Args:
        parse: makes a record of a line's JSON.
        what: what each line should be, for messages.
        remedy: what writes the file anew.

    Raises:
        UserError: a line that is none; names file and line.
    """
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                record = parse(json.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                problem = f"{type(error).__name__}: {error}"
                raise UserError(f"{path}:{number}: not {what} ({problem}); {remedy}") from error
            yield record


def write_curve(
    path: Path, points: Sequence[Mapping[str, float]], *, columns: Sequence[str] = ()
) -> None:
    """Write logged numbers as CSV for `dvc plots`: `step` first, the other columns sorted.

    Args:
        columns: columns to have even if no point does.
    """
    named = sorted({*columns, *(name for point in points for name in point)} - {"step"})
    with replacing(path) as partial, partial.open("w", encoding="utf-8", newline="") as table:
        rows = csv.DictWriter(table, ["step", *named], restval="", lineterminator="\n")
        rows.writeheader()
        rows.writerows(points)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that takes `path`'s place once the block ends without an error.

    Each writer has its own: of two that write one path at once, the last takes its place, whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for other in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        writer = other.name.split(".")[-2].partition("-")[0]
        if writer.isdigit() and not psutil.pid_exists(int(writer)):
            _remove(other)
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
    try:
        yield partial
        if partial.is_dir():
            _remove(path)
        else:
            with partial.open("rb") as written:
                os.fsync(written.fileno())
        partial.replace(path)
    except BaseException:
        _remove(partial)
        raise


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def hash_path(path: Path) -> str:
    """SHA-256 (16 hex digits) of a file, or of a directory's names and contents."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        if file.is_file():
            digest.update(str(file.relative_to(path)).encode() + b"\0")
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]


def stage_code(stage: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Hashes of the code that dvc.yaml lists for a stage: what decides its result.

    dvc.yaml is the one list of a stage's code; a test holds it to the imports.

    Args:
        stage: its name in dvc.yaml.
        settings: params by section, for the paths that name one (`${validation.stack}`).
    """

    deps = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"][stage]["deps"]
    code = [dep for dep in deps if dep.startswith(("lib/", "stages/"))]

    def value(key: re.Match[str]) -> str:
        names = key[1].split(".")
        return str(functools.reduce(lambda section, name: section[name], names, settings))

    paths = [re.sub(r"\$\{([\w.]+)\}", value, path) for path in code]
    return {path: hash_code(ROOT / path) for path in paths}


def hash_code(path: Path) -> str:
    """SHA-256 (16 hex digits) of a source file, or of all sources in a folder."""
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    content = {str(file.relative_to(path.parent)): hash_path(file) for file in files}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def fingerprint(decisive: Mapping[str, Any], *, inputs: Mapping[str, Path]) -> str:
    """16 hex digits of all that decides a result: `decisive`, the inputs' content, the packages."""
    content = {
        **decisive,
        "plugins": plugin_hashes(decisive),
        "inputs": {name: hash_path(path) for name, path in inputs.items()},
        "versions": versions(),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """Installed versions of the packages that decide the numbers."""
    return {name: importlib.metadata.version(name) for name in VERSIONED}


def write_provenance(
    path: Path, *, settings: Any, inputs: Mapping[str, Path], **facts: Any
) -> None:
    """Write how an output came about: settings, versions, hashes of inputs. No clock, no path."""
    content = {
        "settings": settings,
        "versions": versions(),
        "inputs": {name: hash_path(source) for name, source in inputs.items()},
        "plugins": plugin_hashes(settings),
        **facts,
    }
    write_json(path, content)
