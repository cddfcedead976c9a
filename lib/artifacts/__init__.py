"""Read, write and hash the files that stages exchange (JSON, JSONL, CSV).

Files are written whole or not at all, with equal bytes for equal content.
"""

import csv
import glob
import hashlib
import importlib.metadata
import itertools
import json
import math
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil

from lib.core.errors import UserError
from lib.core.plugins import plugin_hashes

Record = TypeVar("Record")

ROOT = Path(__file__).resolve().parents[2]

SCRATCH = Path("data/scratch")
"""Checkpoints and other work to resume from, and temporary files; no stage depends on them."""

METRIC_DIGITS = 6
"""Decimals that metrics keep: far below any standard error, above rounding noise."""

VERSIONED_PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "tokenizers",
)


def write_metrics(path: Path, metrics: Mapping[str, Any], **facts: Any) -> None:
    """Write metrics as JSON with sorted keys, numbers rounded to six decimals.

    `dvc metrics diff` compares all numbers except those in lists. Callers put standard errors into
    a list, so that it does not compare them:
    `{"pass_at_1": 0.5, "standard_errors": [{"pass_at_1_se": 0.01}]}`.

    Args:
        metrics: numbers, also in nested mappings and in mappings in lists.
        facts: further entries, written unchanged; they may be text.

    Raises:
        ValueError: a value that is no finite number.
    """
    write_json(path, {**_numbers(metrics), **facts})


def _numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested metrics with rounded numbers.

    Mappings in a list are rounded too; other items of a list are returned unchanged.

    Raises:
        ValueError: a value that is no finite number, mapping or list.
    """
    rounded: dict[str, Any] = {}
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            rounded[key] = _numbers(value)
        elif isinstance(value, list):
            rounded[key] = [_numbers(each) if isinstance(each, Mapping) else each for each in value]
        elif isinstance(value, int | float) and math.isfinite(value):
            rounded[key] = round(value, METRIC_DIGITS)
        else:
            # JSON has no NaN or infinity, and `dvc metrics diff` cannot compare them.
            raise ValueError(f"metric {key} must be a finite number, got {value!r}")
    return rounded


def unlisted(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics as read from a file, with each list replaced by the entries of its one item.

    `{"pass_at_1": 0.5, "standard_errors": [{"pass_at_1_se": 0.01}]}` ->
    `{"pass_at_1": 0.5, "pass_at_1_se": 0.01}`

    In the file, the list hides the standard errors from `dvc metrics diff`, which skips lists.
    """
    flat: dict[str, Any] = {}
    for key, value in metrics.items():
        if isinstance(value, list):
            flat |= value[0]  # the only item, a mapping
        else:
            flat[key] = unlisted(value) if isinstance(value, Mapping) else value
    return flat


ENCODING_ERRORS = "backslashreplace"
"""Error handler for lone surrogates, which UTF-8 cannot encode: written as JSON's own escapes."""


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON with sorted keys, whole or not at all."""
    with replacing(path) as partial:
        text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
        partial.write_text(text + "\n", encoding="utf-8", errors=ENCODING_ERRORS)


MAX_JSON = 32 * 2**20
"""Most bytes of one line or row: parsed, it takes up to 20 times as much memory (`[],[],…`)."""


def unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object's pairs as a mapping; raise ValueError if a key occurs twice."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"has the key `{next(key for key in keys if keys.count(key) > 1)}` twice")
    return mapping


def parse_json(content: bytes | str, *, unique: bool = False) -> Any:
    """Parse JSON that this pipeline may not have written.

    Args:
        unique: refuse an object with a key twice; otherwise the last one counts.

    Raises:
        ValueError: not UTF-8 (`UnicodeDecodeError`), not JSON, or nested too deeply.
    """
    try:
        # utf-8-sig: editors on Windows begin a file with a byte order mark, which json refuses.
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        return json.loads(text, object_pairs_hook=unique_keys if unique else None)
    # `json` recurses once per level of nesting.
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path, *, remedy: str = "`dvc repro` runs the stage that writes it") -> Any:
    """Parse one JSON file.

    Args:
        remedy: the end of the error message.

    Raises:
        UserError: missing, not readable, or no JSON; names the file.
    """
    try:
        return parse_json(path.read_bytes())
    except FileNotFoundError:
        fault = "no such file"
    except OSError as error:
        fault = f"cannot be read ({error.strerror})"
    except ValueError as error:
        fault = f"not JSON ({error})"
    raise UserError(f"{path}: {fault}; {remedy}")


class JsonLine(NamedTuple):
    """One line of a JSONL file that is not blank.

    Attributes:
        number: counted from 1.
        text: the line, stripped.
        value: the parsed JSON, None if there is a fault.
        fault: the parse error, None for valid JSON.
    """

    number: int
    text: str
    value: Any
    fault: ValueError | None


def json_lines(
    path: Path, *, remedy: str = "expected a JSONL file", unique: bool = False
) -> Iterator[JsonLine]:
    """Yield each line of a JSONL file with its value, or with its fault if it is not JSON.

    Blank lines are skipped. A line of more than `MAX_JSON` bytes is a fault.

    Args:
        remedy: the end of the error message.
        unique: as `parse_json` has it.

    Raises:
        UserError: the file cannot be opened.
    """
    try:
        # Opened as bytes: in text mode, one undecodable line would end the iteration.
        lines = path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; {remedy}") from error
    with lines:
        for number in itertools.count(1):
            line = lines.readline(MAX_JSON + 1)
            if not line:
                return
            end = line
            while len(end) > MAX_JSON and not end.endswith(b"\n"):
                end = lines.readline(MAX_JSON + 1)
            if end is line and not line.strip():
                continue
            value, fault = None, None
            try:
                if end is not line:
                    line = line[:80]
                    raise ValueError(f"longer than {MAX_JSON} bytes")
                value = parse_json(line, unique=unique)
            except ValueError as error:
                fault = error
            # "replace": the text is for messages, and may have undecodable bytes.
            yield JsonLine(number, line.decode("utf-8-sig", "replace").strip(), value, fault)


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object per line, as the rows arrive; the file appears whole or not at all."""
    # `partial` is renamed to `path` at the end. ENCODING_ERRORS writes lone surrogates, which UTF-8
    # cannot encode, as JSON's own escapes.
    with (
        replacing(path) as partial,
        partial.open("w", encoding="utf-8", errors=ENCODING_ERRORS) as lines,
    ):
        for row in rows:
            # ensure_ascii=False: formulas and accents stay readable in the file.
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")


def read_records(
    path: Path, parse: Callable[[Any], Record], *, what: str, remedy: str
) -> Iterator[Record]:
    """Yield the record of each line of a JSONL file.

    Args:
        parse: converts a line's JSON into a record; raises ValueError, TypeError or KeyError if the
            JSON is no record.
        what: the expected content of a line, for messages.
        remedy: the command that rewrites the file, for messages.

    Raises:
        UserError: the file cannot be opened, or a line is no record; names file and line.
    """
    for line in json_lines(path, remedy=remedy):
        try:
            # The ValueError of a line that is no JSON is reported like those of `parse`.
            if line.fault:
                raise line.fault
            record = parse(line.value)
        except (ValueError, TypeError, KeyError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise UserError(f"{path}:{line.number}: not {what} ({problem}); {remedy}") from error
        yield record


def write_curve(
    path: Path, points: Sequence[Mapping[str, float]], *, columns: Sequence[str] = ()
) -> None:
    """Write logged numbers as CSV for `dvc plots`: a row per point, an empty cell for no number.

    The column `step` comes first; the others are sorted, so that their order does not depend on the
    points' order.

    Args:
        points: a mapping each: {"step": 10, "loss": 0.5}; a step may have several.
        columns: columns to write even if no point has them.
    """
    named = sorted({*columns, *(name for point in points for name in point)} - {"step"})
    with replacing(path) as partial, partial.open("w", encoding="utf-8", newline="") as table:
        # csv's default line end is \r\n.
        rows = csv.DictWriter(table, ["step", *named], restval="", lineterminator="\n")
        rows.writeheader()
        rows.writerows(points)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path, at which the block writes a file or folder that replaces `path`.

    The temporary path is renamed to `path` when the block ends. After an error it is deleted, and
    `path` stays as it was. Each writer has its own temporary path: if two processes write `path` at
    the same time, the one that ends last wins.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Delete the temporary files of killed processes. A name such as .metrics.json.4711-1.partial
    # holds the process id 4711 and a thread id; the file of a live process stays.
    for other in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        writer = other.name.split(".")[-2].partition("-")[0]
        if writer.isdigit() and not psutil.pid_exists(int(writer)):
            _remove(other)
    # The temporary path is beside the target: a rename is atomic only in one file system.
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
    try:
        yield partial
        # A rename replaces a file, but not a nonempty folder.
        if partial.is_dir():
            _remove(path)
        else:
            # Without fsync, a power loss after the rename can leave an empty file.
            with partial.open("rb") as written:
                os.fsync(written.fileno())
        partial.replace(path)
    # BaseException: SIGTERM raises KeyboardInterrupt here (`core.process`).
    except BaseException:
        _remove(partial)
        raise


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def hash_path(path: Path) -> str:
    """Return the SHA-256 (16 hex digits) of a file's content, or of a directory's.

    The hash of a directory depends on the relative name and the content of each file in it.
    """
    # Sorted, since the order of a directory's files depends on the file system.
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        if file.is_file():
            # The zero byte separates the name from the content. For a single file, the relative
            # name is `.`, so that its own name does not count.
            digest.update(str(file.relative_to(path)).encode() + b"\0")
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]


def hash_json(content: Any) -> str:
    """Return the SHA-256 (16 hex digits) of a value as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def fingerprint(decisive: Mapping[str, Any], *, inputs: Mapping[str, Path]) -> str:
    """Return a hash (16 hex digits) of all that decides a result.

    A run with the same hash as an interrupted one resumes from its work.

    Args:
        decisive: settings and hashes of code, as JSON; the plugins named in it are hashed too.
        inputs: files or folders by name, hashed by their content.
    """
    return hash_json({**decisive, **_origin(decisive, inputs)})


def versions() -> dict[str, str]:
    """Return the installed versions of the packages that affect results."""
    return {name: importlib.metadata.version(name) for name in VERSIONED_PACKAGES}


def write_provenance(
    path: Path, *, settings: Any, inputs: Mapping[str, Path], **facts: Any
) -> None:
    """Write the origin of an output: settings, hashes of inputs and plugins, package versions.

    The file has no clock time and no path of an input, so that an equal run writes equal bytes.

    Args:
        settings: params, as JSON; the files of the plugins named in them are hashed.
        inputs: files or folders by name, hashed by their content.
        facts: further entries, written unchanged.
    """
    write_json(path, {"settings": settings, **_origin(settings, inputs), **facts})


def _origin(settings: Any, inputs: Mapping[str, Path]) -> dict[str, dict[str, str]]:
    return {
        "plugins": plugin_hashes(settings),
        "inputs": {name: hash_path(path) for name, path in inputs.items()},
        "versions": versions(),
    }
