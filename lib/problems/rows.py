"""Rows of a source, each with its place; one that cannot be read holds the reason.

Text files are read row by row here and not by `datasets`' own readers, which refuse a whole file
for one bad row and cannot name it, and which turn an MMLU option "0.10" into the number 0.1.
"""

import csv
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lib.core.errors import UserError

if TYPE_CHECKING:
    # Adapters are checked with params, before anything heavy is imported.
    from datasets import Dataset

Fields = Mapping[str, Any]

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
"""What can be wrong with a row; metrics count by these."""


class RowFault(Exception):
    """One row that gives no problem.

    Attributes:
        reason: what kind of fault.
        field: the field at fault, '' for the row as a whole.
        detail: what was found and what was expected.
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
        origin: the file, or the Hub set, that it is from.
        number: line (JSONL, CSV) or row, counted from 1; 0 for the file as a whole.
        fields: the row, or why it could not be read.
    """

    origin: str
    number: int
    fields: Fields | RowFault

    @property
    def place(self) -> str:
        return f"{self.origin}:{self.number}" if self.number else self.origin


def read_json(path: Path) -> Iterator[RawRow]:
    """A JSON object a line, blank lines skipped; or, in a `.json`, the elements of one array."""
    with path.open("rb") as lines:
        start = lines.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()
        lines.seek(0)
        if path.suffix == ".jsonl" or not start.startswith(b"["):
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield RawRow(str(path), number, _object(_parse(line, "JSON")))
            return
        rows = _parse(lines.read(), "a JSON array")
    if isinstance(rows, RowFault):
        yield RawRow(str(path), 0, rows)
        return
    for number, row in enumerate(rows, start=1):
        yield RawRow(str(path), number, _object(row))


def _parse(content: bytes, form: str) -> Any:
    """The JSON of `content`, or the fault that it is none."""
    try:
        return json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return RowFault("bad_utf8", detail=f"not UTF-8 at byte {error.start + 1}")
    except (ValueError, RecursionError) as error:
        return RowFault("unreadable", detail=f"not {form} ({error})")


def _object(row: Any) -> Fields | RowFault:
    if isinstance(row, dict | RowFault):
        return row
    detail = f"expected a JSON object, found {type(row).__name__}"
    return RowFault("wrong_type", detail=detail)


def read_csv(path: Path, *, names: Sequence[str] = ()) -> Iterator[RawRow]:
    """Comma-separated rows; every value stays text.

    Args:
        path: the file.
        names: columns of a file that has no header; () reads them from the first row.
    """
    csv.field_size_limit(sys.maxsize)
    # Undecodable bytes become lone surrogates, which only the row they are in contains.
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        reader = csv.reader(lines, strict=True)
        while True:
            fields: Fields | RowFault
            try:
                values = next(reader, None)
            except csv.Error as error:
                fields = RowFault("unreadable", detail=f"not CSV ({error})")
            else:
                if values is None:
                    return
                if not values or not names:
                    names = names or values
                    continue
                fields = _named(values, names)
            yield RawRow(str(path), reader.line_num, fields)


def _named(values: Sequence[str], names: Sequence[str]) -> Fields | RowFault:
    if len(values) != len(names):
        detail = f"expected {len(names)} values ({', '.join(names)}), found {len(values)}"
        return RowFault("unreadable", detail=detail)
    return dict(zip(names, values, strict=True))


def read_table(dataset: "Dataset", *, origin: str) -> Iterator[RawRow]:
    """Rows of an Arrow-backed set, a batch in memory at a time."""
    number = 0
    for batch in dataset.with_format("arrow").iter(batch_size=200):
        for index in range(batch.num_rows):
            number += 1
            yield RawRow(origin, number, _cells(batch, index))


def _cells(batch: Any, index: int) -> Fields | RowFault:
    fields = {}
    for name in batch.column_names:
        # Cell by cell: one bad cell would make a whole batch's conversion fail.
        try:
            fields[name] = batch.column(name)[index].as_py()
        except UnicodeDecodeError as error:
            detail = f"not UTF-8 at byte {error.start + 1}"
            return RowFault("bad_utf8", field=name, detail=detail)
    return fields


def bad_row_error(row: RawRow, fault: RowFault) -> UserError:
    """The error that a bad row is where `bad_rows` is not `drop`."""
    drop = "set `prepare.bad_rows: drop` to leave such rows out and count them"
    mend = {
        "undecidable": "name its columns in `columns:`",
        "missing_field": f"name its column in `columns:`, or {drop}",
    }.get(fault.reason, f"mend the row, or {drop}")
    return UserError(f"{row.place}: {fault}; {mend}")
