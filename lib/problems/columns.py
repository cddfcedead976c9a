"""The table that turns any source's columns into the canonical record.

| field     | columns, the first that holds something counts             |
|-----------|------------------------------------------------------------|
| problem   | problem, question, prompt (text or chat messages)          |
| reference | answer, expected_answer, reference_answer, solution        |
| solution  | generated_solution, response, solution, answer             |
| subject   | subject, type, subfield                                    |
| level     | level, difficulty                                          |

A text that ends in `#### N` or holds `\\boxed{}` is both working and reference. Where the table
leaves open whether a text is an answer or a working, the row is an error that asks for `columns:`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lib.problems.answers import Worked, is_bare, read_worked
from lib.problems.rows import Fields, RowFault
from lib.problems.schema import Problem

PROBLEM = ("problem", "question", "prompt")
REFERENCE = ("answer", "expected_answer", "reference_answer", "solution")
SOLUTION = ("generated_solution", "response", "solution", "answer")
SUBJECT = ("subject", "type", "subfield")
LEVEL = ("level", "difficulty")

FIELDS = {
    "problem": PROBLEM,
    "reference": REFERENCE,
    "solution": SOLUTION,
    "subject": SUBJECT,
    "level": LEVEL,
}

_LEVEL = re.compile(r"(?:level\s*)?(\d+)", re.IGNORECASE)


def to_problem(fields: Fields, *, columns: Mapping[str, str] | None = None) -> Problem:
    """The canonical record of one row.

    Args:
        fields: the row.
        columns: record field to column, for what params name; the table decides the rest.

    Raises:
        RowFault: a missing or empty field, a wrong type, text that is no Unicode, or a row that
            leaves open which text is the answer.
    """
    named = dict(columns or {})
    for field, column in named.items():
        if column not in fields:
            raise _absent(fields, (column,), field=field)
    problem = _problem_text(fields, _columns("problem", named))
    reference, solution = _reference_and_solution(fields, named)
    return Problem.create(
        problem=problem,
        reference=reference,
        solution=solution,
        subject=_optional(fields, _columns("subject", named)),
        level=_level(fields, _columns("level", named)),
    )


def _columns(field: str, named: Mapping[str, str]) -> Sequence[str]:
    return (named[field],) if field in named else FIELDS[field]


def _problem_text(fields: Fields, candidates: Sequence[str]) -> str:
    column, value = first_present(fields, candidates, field="problem")
    return question(value, field=column) if isinstance(value, list) else text_of(value, column)


def question(messages: Sequence[Any], *, field: str) -> str:
    """The one user turn of a conversation; a system turn is dropped, as `prompt.system` has it."""
    if not all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in messages):
        raise RowFault("wrong_type", field=field, detail="expected text or chat messages")
    asked = [turn["content"] for turn in messages if turn["role"] == "user"]
    if len(asked) != 1:
        detail = f"expected one user message, found {len(asked)}"
        raise RowFault("wrong_type", field=field, detail=detail)
    return text_of(asked[0], field)


def _reference_and_solution(fields: Fields, named: Mapping[str, str]) -> tuple[str, str]:
    found = _find(fields, _columns("reference", named))
    if found is None:
        worked = None if "reference" in named else _worked_column(fields, named)
        if worked is None:
            raise _absent(fields, _columns("reference", named), field="reference")
        return worked.reference, worked.solution
    column, text = found[0], text_of(found[1], found[0])
    worked = read_worked(text)
    if worked:
        return worked.reference, worked.solution or _solution(fields, named, but=column)
    if "reference" not in named:
        _decide(fields, column, text)
    return text, _solution(fields, named, but=column)


def _worked_column(fields: Fields, named: Mapping[str, str]) -> Worked | None:
    """Answer and working of the first text that has both, where no column holds the reference."""
    found = _find(fields, _columns("solution", named))
    if found is None:
        return None
    worked = read_worked(text_of(found[1], found[0]))
    if worked is None:
        detail = "no answer column, and no `#### N` or \\boxed{} in the working"
        raise RowFault("undecidable", field=found[0], detail=detail)
    return worked


def _decide(fields: Fields, column: str, text: str) -> None:
    """Refuse a text that may as well be a working whose answer is not marked."""
    working_beside = any(_find(fields, (name,)) for name in SOLUTION if name != column)
    if not is_bare(text) and not (column != "solution" and working_beside):
        detail = f"cannot tell whether this is an answer or a working: {_excerpt(text)!r}"
        raise RowFault("undecidable", field=column, detail=detail)


def _solution(fields: Fields, named: Mapping[str, str], *, but: str) -> str:
    """The working; a column that serves as the bare reference is none."""
    for column in _columns("solution", named):
        found = _find(fields, (column,)) if column != but else None
        if found:
            text = text_of(found[1], column)
            worked = read_worked(text)
            return worked.solution if worked else text
    return ""


def first_present(fields: Fields, candidates: Sequence[str], *, field: str) -> tuple[str, Any]:
    """The first of these columns that holds something.

    Raises:
        RowFault: none does.
    """
    found = _find(fields, candidates)
    if found is None:
        raise _absent(fields, candidates, field=field)
    return found


def _absent(fields: Fields, candidates: Sequence[str], *, field: str) -> RowFault:
    blank = [name for name in candidates if fields.get(name) is not None]
    if blank:
        return RowFault("empty_field", field=blank[0], detail="is empty")
    expected = " or ".join(f"`{name}`" for name in candidates)
    detail = f"missing; expected {expected}, the row has {', '.join(map(str, fields)) or 'nothing'}"
    return RowFault("missing_field", field=field, detail=detail)


def _find(fields: Fields, candidates: Sequence[str]) -> tuple[str, Any] | None:
    for name in candidates:
        value = fields.get(name)
        if value is not None and not (isinstance(value, str) and not value.strip()):
            return name, value
    return None


def text_of(value: Any, field: str) -> str:
    """A text or a number as text; 27.0 is "27".

    Raises:
        RowFault: another type, a number that is none, or half a surrogate pair.
    """
    if isinstance(value, str):
        if not value.isascii():
            _check_unicode(value, field)
        return value.strip()
    if isinstance(value, bool) or not isinstance(value, int | float):
        detail = f"expected text or a number, found {type(value).__name__}"
        raise RowFault("wrong_type", field=field, detail=detail)
    if not math.isfinite(value):
        raise RowFault("wrong_type", field=field, detail=f"expected a number, found {value}")
    return str(int(value)) if value == int(value) else repr(value)


def _check_unicode(text: str, field: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        detail = f"not Unicode text at character {error.start + 1}"
        raise RowFault("bad_utf8", field=field, detail=detail) from error


def _optional(fields: Fields, candidates: Sequence[str]) -> str:
    found = _find(fields, candidates)
    return text_of(found[1], found[0]) if found else ""


def _level(fields: Fields, candidates: Sequence[str]) -> int | str:
    """MATH's "Level 5" and MATH-500's 5.0 are 5; a level that is no number stays text."""
    text = _optional(fields, candidates)
    number = _LEVEL.fullmatch(text)
    return int(number[1]) if number else text


def _excerpt(text: str, length: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
