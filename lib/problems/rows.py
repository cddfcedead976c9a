"""Read JSON, CSV and Arrow sources row by row, with each row's place, or its fault if unreadable.

Text files are read row by row, except a JSON array. `datasets`' own readers refuse a whole file for
one bad row without naming it, and turn an MMLU option "0.10" into the number 0.1.
"""

import csv
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lib.artifacts import json_lines, parse_json

if TYPE_CHECKING:
    # For the annotation only: the import is slow.
    from datasets import Dataset

Fields = Mapping[str, Any]
"""A row: column → value."""

Reason = Literal[
    "unreadable",
    "bad_utf8",
    "missing_field",
    "empty_field",
    "wrong_type",
    "undecidable",
    "no_answer",
    "unparseable_answer",
]
"""Kinds of faults of a row; metrics count the dropped rows of each."""


class RowFault(Exception):
    """The fault of a row without a usable problem.

    Attributes:
        reason: kind of fault.
        field: the faulty field, '' for the whole row.
        detail: actual and expected content.
    """

    def __init__(self, reason: Reason, *, detail: str, field: str = "") -> None:
        super().__init__(f"field `{field}`: {detail}" if field else detail)
        self.reason: Reason = reason
        self.field = field
        self.detail = detail


@dataclasses.dataclass(frozen=True)
class RawRow:
    """One row of a source.

    Attributes:
        origin: its file or Hub set.
        number: line (JSONL, CSV) or row, counted from 1; 0 for the whole file.
        fields: the row, or the fault that made it unreadable.
    """

    origin: str
    number: int
    fields: Fields | RowFault

    @property
    def place(self) -> str:
        """The row for messages: `data/raw/gsm8k.jsonl:12`."""
        return f"{self.origin}:{self.number}" if self.number else self.origin


def read_json_rows(path: Path) -> Iterator[RawRow]:
    """Yield the rows of JSON lines (blank ones skipped), or of a `.json` with one array or object.

    A row that is no JSON object is yielded with its fault in place of its fields.
    """
    # A `.json` may hold one array, one object on several lines (MATH's own files), or JSON lines.
    if path.suffix == ".json":
        text = path.read_bytes()
        try:
            whole = parse_json(text)
        except ValueError as error:
            # An array begins with "[", after a byte order mark and white space.
            if text[:64].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
                # The number 0: the whole file is at fault.
                yield RawRow(str(path), 0, _parse_fault(error, "a JSON array"))
                return
        else:
            for number, row in enumerate(whole if isinstance(whole, list) else [whole], start=1):
                yield RawRow(str(path), number, _object_or_fault(row))
            return
    for line in json_lines(path):
        # `_object_or_fault` returns a JSON object as it is, and a fault for any other value.
        row = _parse_fault(line.fault, "JSON") if line.fault else _object_or_fault(line.value)
        yield RawRow(str(path), line.number, row)


def _parse_fault(error: ValueError, form: str) -> RowFault:
    """Return the fault of a text that cannot be parsed as `form`."""
    if isinstance(error, UnicodeDecodeError):
        return RowFault("bad_utf8", detail=f"not UTF-8 at byte {error.start + 1}")
    return RowFault("unreadable", detail=f"not {form} ({error})")


def _object_or_fault(row: Any) -> Fields | RowFault:
    """Return a parsed JSON value if it is an object, else a fault."""
    if isinstance(row, dict):
        return row
    detail = f"expected a JSON object, found {type(row).__name__}"
    return RowFault("wrong_type", detail=detail)


def read_csv_rows(path: Path, *, names: Sequence[str] = ()) -> Iterator[RawRow]:
    """Yield comma-separated rows; every value stays text.

    A row that cannot be parsed is yielded with its fault in place of its fields. If it is the
    header, no other row follows.

    Args:
        path: the file.
        names: columns of a file without a header; () reads them from the first row. Without a
            header, rows also have the field `file`, the file's name without suffix.
    """
    file_field = {"file": path.stem} if names else {}
    # The default, 131,072 characters, refuses long solutions.
    csv.field_size_limit(sys.maxsize)
    # Undecodable bytes become lone surrogates: only their own row is at fault, when its text is
    # converted.
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        # strict: an unclosed quote is an error instead of one huge field.
        reader = csv.reader(lines, strict=True)
        # Not a `for` loop, which an error would end: the reader goes on with the next row.
        while True:
            fields: Fields | RowFault
            try:
                values = next(reader, None)
            except csv.Error as error:
                fields = RowFault("unreadable", detail=f"not CSV ({error})")
                # A header that cannot be read is a fault of the whole file: number 0.
                if not names:
                    yield RawRow(str(path), 0, fields)
                    return
            else:
                if values is None:  # the end of the file
                    return
                # [] is a blank line, which is skipped. Without `names`, the first line that is not
                # blank is the header and gives them.
                if not values or not names:
                    names = names or values
                    named = [name for name in names if name]
                    if len(set(named)) < len(named):
                        detail = f"two columns have one name: {', '.join(named)}"
                        yield RawRow(str(path), 0, RowFault("unreadable", detail=detail))
                        return
                    continue
                fields = _csv_fields(values, names, file_field)
            yield RawRow(str(path), reader.line_num, fields)


def _csv_fields(
    values: Sequence[str], names: Sequence[str], file_field: Mapping[str, str]
) -> Fields | RowFault:
    """Return a CSV row as column → value; a fault if there are not as many values as names.

    Args:
        file_field: {"file": name of the file} as a further field of the row, or {}.
    """
    if len(values) != len(names):
        detail = f"expected {len(names)} values ({', '.join(names)}), found {len(values)}"
        return RowFault("unreadable", detail=detail)
    return {**file_field, **dict(zip(names, values, strict=True))}


def read_arrow_rows(dataset: "Dataset", *, origin: str) -> Iterator[RawRow]:
    """Yield the rows of an Arrow-backed set, a batch of 200 in memory at a time.

    A row with a text that is not UTF-8 is yielded with its fault in place of its fields.

    Args:
        origin: name of the set in messages.
    """
    number = 0
    # Batches stay Arrow tables: one bad cell would make the conversion of a whole batch fail.
    for batch in dataset.with_format("arrow").iter(batch_size=200):
        for index in range(batch.num_rows):
            number += 1
            yield RawRow(origin, number, _arrow_fields(batch, index))


def _arrow_fields(batch: Any, index: int) -> Fields | RowFault:
    """Convert row `index` of an Arrow table to column → value; a fault if a cell is not UTF-8."""
    fields = {}
    for name in batch.column_names:
        # Cell by cell, so that the fault names the column.
        try:
            fields[name] = batch.column(name)[index].as_py()
        except UnicodeDecodeError as error:
            detail = f"not UTF-8 at byte {error.start + 1}"
            return RowFault("bad_utf8", field=name, detail=detail)
    return fields
