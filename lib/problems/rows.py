"""Read JSON, CSV and Parquet row by row, with each row's place, or its fault if unreadable.

`datasets`' own readers refuse a whole file for one bad row without naming it, and turn an MMLU
option "0.10" into the number 0.1. Memory is that of a few rows, whatever the file.
"""

import csv
import dataclasses
import json
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lib.artifacts import MAX_JSON, json_lines, parse_json, unique_keys

if TYPE_CHECKING:
    # For the annotations only: the imports are slow.
    import pyarrow

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
    "placeholder",
    "unparseable_answer",
]
"""Kinds of faults of a row; metrics count the dropped rows of each."""


BATCH = 200
"""Rows of an Arrow table in memory at a time."""
NUM_LAST = 3
"""Rows that `check` reads at each end of a source."""


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
        cleaned: fields of its problem that are empty or changed, since the row's are no labels.
    """

    origin: str
    number: int
    fields: Fields | RowFault
    cleaned: tuple[str, ...] = ()

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
        content = path.read_bytes()
        # An array begins with "[", after a byte order mark and white space.
        if content[:64].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
            for number, row in _array_rows(content):
                yield RawRow(str(path), number, row)
            return
        if len(content) <= MAX_JSON:
            try:
                whole = parse_json(content, unique=True)
            except ValueError:
                pass
            else:
                yield RawRow(str(path), 1, _object_or_fault(whole))
                return
    for line in json_lines(path, unique=True):
        row = _parse_fault(line.fault, "JSON") if line.fault else _object_or_fault(line.value)
        yield RawRow(str(path), line.number, row)


_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder(object_pairs_hook=unique_keys)


def _array_rows(content: bytes) -> Iterator[tuple[int, Fields | RowFault]]:
    """Yield (number from 1, row or fault) of a JSON array, one element in memory at a time.

    A fault is the last one: where the next element begins is unknown. Number 0 is the whole file.
    """
    try:
        text = content.decode("utf-8-sig")
    except ValueError as error:
        yield 0, _parse_fault(error, "JSON")
        return
    place = _after_space(text, text.index("[") + 1)
    number, ended = 0, text.startswith("]", place)
    while not ended:
        number += 1
        try:
            row, end = _DECODER.raw_decode(text, place)
            if end - place > MAX_JSON:
                raise ValueError(f"longer than {MAX_JSON} characters")
        except (ValueError, RecursionError) as error:
            yield number, RowFault("unreadable", detail=f"not JSON ({error})")
            return
        yield number, _object_or_fault(row)
        place = _after_space(text, end)
        ended = not text.startswith(",", place)
        if not ended:
            place = _after_space(text, place + 1)
    if text[place:].strip() != "]":
        detail = f"not a JSON array after {number} rows: {text[place : place + 20]!r}"
        yield number + 1, RowFault("unreadable", detail=detail)


def _after_space(text: str, place: int) -> int:
    space = _SPACE.match(text, place)
    return space.end() if space else place


def _parse_fault(error: ValueError, form: str) -> RowFault:
    if isinstance(error, UnicodeDecodeError):
        return RowFault("bad_utf8", detail=f"not UTF-8 at byte {error.start + 1}")
    return RowFault("unreadable", detail=f"not {form} ({error})")


def _parsed_row(line: bytes) -> Fields | RowFault:
    try:
        return _object_or_fault(parse_json(line, unique=True))
    except ValueError as error:
        return _parse_fault(error, "JSON")


def _object_or_fault(row: Any) -> Fields | RowFault:
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
    csv.field_size_limit(MAX_JSON)
    # Undecodable bytes become lone surrogates: only their own row is at fault, when its text is
    # converted.
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        # strict: an unclosed quote is an error instead of one huge field.
        reader = csv.reader(_csv_lines(lines), strict=True)
        # Not a `for` loop, which an error would end: the reader goes on with the next row.
        while True:
            is_header = not names
            fields: Fields | RowFault
            try:
                values = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                fields = RowFault("unreadable", detail=f"not CSV ({error})")
            else:
                if not values:  # a blank line
                    continue
                if is_header:
                    names = [name.strip() for name in values]
                    named = [name for name in names if name]
                    if len(set(named)) == len(named):
                        continue
                    detail = f"two columns have one name: {', '.join(named)}"
                    fields = RowFault("unreadable", detail=detail)
                elif len(values) != len(names):
                    detail = f"expected {len(names)} values ({', '.join(names)})"
                    fields = RowFault("unreadable", detail=f"{detail}, found {len(values)}")
                else:
                    fields = {**file_field, **dict(zip(names, values, strict=True))}
            # A header that cannot be read is a fault of the whole file: number 0.
            yield RawRow(str(path), 0 if is_header else reader.line_num, fields)
            if is_header:
                return


def _csv_lines(lines: Any) -> Iterator[str]:
    """Yield the lines of a CSV file; raise csv.Error at one of more than `MAX_JSON` characters."""
    while line := lines.readline(MAX_JSON):
        if len(line) == MAX_JSON and not line.endswith("\n"):
            raise csv.Error(f"a line of more than {MAX_JSON} characters")
        yield line


def last_rows(rows: Callable[[Path], Iterator[RawRow]], path: Path) -> Iterator[RawRow]:
    """Yield the last rows of a file, without the time to parse a large one.

    Args:
        rows: reads the file.
    """
    if path.suffix == ".parquet":
        yield from read_parquet_rows(path, ends=True)
        return
    size = path.stat().st_size
    if path.suffix in (".jsonl", ".ndjson") and size > MAX_JSON:
        with path.open("rb") as content:
            number = sum(chunk.count(b"\n") for chunk in iter(lambda: content.read(2**20), b""))
            content.seek(size - MAX_JSON // 8)
            # The lines of the last megabytes; the first of them may be cut.
            tail = content.read().split(b"\n")[1:]
        numbered = enumerate(tail, start=number - len(tail) + 2)
        for place, line in [each for each in numbered if each[1].strip()][-NUM_LAST:]:
            yield RawRow(str(path), place, _parsed_row(line))
    elif size <= MAX_JSON:
        yield from deque(rows(path), maxlen=NUM_LAST)


def read_parquet_rows(
    path: Path, *, columns: Collection[str] = (), ends: bool = False
) -> Iterator[RawRow]:
    """Yield the rows of a Parquet file; one without rows gives none.

    A file that cannot be read gives one row with a fault, and no other.

    Args:
        columns: those to read, upper or lower case; the others are None in every row. () reads
            all.
        ends: True for the last `NUM_LAST` rows only.
    """
    from pyarrow import ArrowException, parquet, types

    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            names = schema.names
            texts = [field.name for field in schema if types.is_string(field.type)]
        # A file of kilobytes may repeat one text of megabytes in every row: kept once.
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            used = [name for name in names if {name, name.lower()} & {*columns} or not columns]
            groups = range(file.num_row_groups)[-1:] if ends else range(file.num_row_groups)
            batches: Iterable[Any] = file.iter_batches(
                batch_size=BATCH, columns=used, row_groups=list(groups)
            )
            start = 0
            if ends:
                # Without conversion to Python, a whole group takes little time.
                batches = [each.slice(max(0, len(each) - NUM_LAST)) for each in deque(batches, 1)]
                start = file.metadata.num_rows - sum(map(len, batches))
            yield from arrow_rows(batches, origin=str(path), names=names, start=start)
    # KeyError, NotImplementedError: of Arrow, for types that it does not read.
    except (ArrowException, OSError, KeyError, NotImplementedError) as error:
        # The number 0: the whole file is at fault.
        detail = f"not a whole Parquet file ({' '.join(str(error).split())})"
        yield RawRow(str(path), 0, RowFault("unreadable", detail=detail))


def arrow_rows(
    batches: Iterable[Any], *, origin: str, names: Sequence[str] = (), start: int = 0
) -> Iterator[RawRow]:
    """Yield the rows of Arrow tables or batches.

    A row with a text that is not UTF-8 has its fault in place of its fields. Tables are converted
    cell by cell: one bad cell would make the conversion of a whole batch fail.

    Args:
        names: all columns of the set, in order; those that the batches lack are None.
        start: number of rows before the first.
    """
    number = start
    for batch in batches:
        columns = [
            (name, batch.column(name), _reader(batch.schema.field(name).type))
            for name in batch.schema.names
        ]
        for index in range(batch.num_rows):
            number += 1
            fields: dict[str, Any] = dict.fromkeys(names)
            fault = None
            for name, column, read in columns:
                try:
                    value = column[index].as_py()
                    fields[name] = read(value) if read else value
                except UnicodeDecodeError as error:
                    detail = f"not UTF-8 at byte {error.start + 1}"
                    fault = RowFault("bad_utf8", field=name, detail=detail)
            yield RawRow(origin, number, fault or fields)


def _reader(kind: "pyarrow.DataType") -> Callable[[Any], Any] | None:
    """Return a function that gives a value of this type its shortest digits; None if it has them.

    A float32 of 0.1 is 0.10000000149011612 as a float64.
    """
    from pyarrow import types

    if types.is_float32(kind) or types.is_float16(kind):
        import numpy as np

        own = np.float32 if types.is_float32(kind) else np.float16
        return lambda value: None if value is None else float(str(own(value)))
    if types.is_struct(kind):
        readers = {field.name: read for field in kind if (read := _reader(field.type))}
        if not readers:
            return None
        return lambda value: (
            value and {**value, **{name: read(value[name]) for name, read in readers.items()}}
        )
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = _reader(kind.value_type)
        return inner and (lambda value: value and [inner(each) for each in value])
    return None
