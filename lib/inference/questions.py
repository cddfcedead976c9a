"""Questions from a file, each with the place it stands at."""

from collections.abc import Callable, Iterator
from pathlib import Path

from lib.errors import UserError
from lib.problems.columns import PROBLEM, problem_text
from lib.problems.rows import RawRow, RowFault, read_csv, read_json, read_jsonl

READERS: dict[str, Callable[[Path], Iterator[RawRow]]] = {
    ".jsonl": read_jsonl,
    ".json": read_json,
    ".csv": read_csv,
}
"""How a file is read, by its ending; any other is text with a question on each line."""


def read_questions(path: Path) -> dict[str, str]:
    """The questions of a file in order, by place ("set.jsonl:3").

    Rows of JSONL, JSON and CSV hold theirs under `problem`, `question` or `prompt`; blank lines are
    skipped.

    Raises:
        UserError: the file is missing, is no UTF-8 text, holds no question, or has a row without
            one.
    """
    try:
        found = dict(_read(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read questions from {path}: {error}") from error
    if not found:
        raise UserError(f"{path} holds no question; expected one on each line")
    return found


def _read(path: Path) -> Iterator[tuple[str, str]]:
    reader = READERS.get(path.suffix)
    if reader:
        for row in reader(path):
            yield row.place, _question(row)
        return
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
        if line.strip():
            yield f"{path}:{number}", line.strip()


def _question(row: RawRow) -> str:
    try:
        if isinstance(row.fields, RowFault):
            raise row.fields
        return problem_text(row.fields)
    except RowFault as fault:
        raise UserError(
            f"{row.place}: {fault}; expected a question under {', '.join(PROBLEM)}"
        ) from fault
