"""The column table: converts a row of any source into a `Problem` by the names of its columns.

| field     | columns; the first nonempty one counts                     |
|-----------|------------------------------------------------------------|
| problem   | problem, question, prompt (text or chat messages)          |
| reference | answer, expected_answer, reference_answer, ground_truth,   |
|           | solution                                                   |
| solution  | generated_solution, response, solution, answer             |
| subject   | subject, type, subfield                                    |
| level     | level, difficulty                                          |

A text that ends in `#### N` or holds `\\boxed{}` is both solution and reference. If the table
cannot tell an answer from a solution, the row is an error that asks for `columns:`.
"""

import ast
import contextlib
import itertools
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from lib.artifacts import MAX_JSON, parse_json
from lib.artifacts.problems import RESPONSE, Problem, excerpt
from lib.problems.rows import Fields, RowFault
from lib.prompts.boxes import last_box

SOLUTION = ("generated_solution", "response", "solution", "answer")

FIELD_COLUMNS = {
    "problem": ("problem", "question", "prompt"),
    "reference": ("answer", "expected_answer", "reference_answer", "ground_truth", "solution"),
    "solution": SOLUTION,
    "subject": ("subject", "type", "subfield"),
    "level": ("level", "difficulty"),
}

BARE_LENGTH = 200
"""Longest bare answer, in characters."""

# "… #### 72" -> "72". No line break may follow up to `\Z`: the mark counts in the last line only.
_FINAL = re.compile(r"####[ \t]*(?P<answer>[^\n#]*)\Z")
# GSM8K's calculator annotation: "<<48/2=24>>".
_CALCULATOR = re.compile(r"<<[^<>\n]*>>")
# "$1,234.50", "-7", "−$3", "5.", "1,00,000", but not the pair "3,4". Digits are optional: "" and
# "$" match too.
_NUMBER = re.compile(
    r"\$?(?P<sign>[-+−]?)\$?(?P<digits>(?:\d{1,3}(?:,\d{2,3})*,\d{3}|\d+)?(?:\.\d+)?)\.?"
)
# Math delimiters, white space and full stops around a box: "$…$.", "\[ … \]".
_DELIMITERS = re.compile(r"\\[\[\]()]|[$.\s]")
# A LaTeX command, with an argument that holds no braces: "\sqrt", "\text{cm}".
_LATEX = re.compile(r"\\[a-zA-Z]+(?:\{[^{}]*\})?")
# Four words of at least two letters in a row.
_PROSE = re.compile(r"(?:\b[^\W\d_]{2,}[,;:]?\s+){3}[^\W\d_]{2,}")
# "Level 5", "5"
_LEVEL = re.compile(r"(?:level\s*)?(\d{1,9})", re.IGNORECASE)
# Chat messages written as text: JSON, or a Python list as pandas prints it into a CSV file.
_CHAT_TEXT = re.compile(r"\s*(?:array\()?\[\s*\{\s*['\"](?:role|content|from|value)['\"]\s*:")
_CHAT_ROLES = {"human": "user", "gpt": "assistant"}
# Names that every JavaScript object has: a table or chart keyed by such a label would break.
_OBJECT_NAMES = re.compile(
    r"__\w+__|constructor|hasOwnProperty|isPrototypeOf|propertyIsEnumerable|toLocaleString|"
    r"toString|valueOf"
)

MAX_ZEROS = 31
"""A number with so many digits before the point, or zeros after it, is written as 1e+31."""
LABEL_LENGTH = 100
"""Longest subject or level, in characters."""


def to_problem(
    fields: Fields, columns: Mapping[str, str] | None = None, *, tags: tuple[str, ...] = ()
) -> Problem:
    """Convert one row into a `Problem` by the names of its columns.

    Args:
        fields: the row, column → value.
        columns: field of the problem → column, from params: `{"problem": "question"}`. The name
            `reward_model.ground_truth` is a nested field, and '' leaves the field empty. For fields
            without an entry, the table at the top of the module lists the columns.
        tags: the problem's tags. With `RESPONSE`, the solution keeps its spaces, and the reference
            comes only from another column; it is '' if there is none.

    Raises:
        RowFault: a missing or empty field, a wrong type, invalid Unicode, or a row without a clear
            answer.
    """
    candidates = _candidates(columns or {})
    for field, column in (columns or {}).items():
        # A column that params name has to be there: no other one of the table replaces it.
        if column and _cell(fields, column) is None:
            raise _absent(fields, (column,), field=field)
    if RESPONSE in tags:
        column, value = _first_value(fields, candidates["solution"])
        # Not stripped like other texts, since SFT learns a response with all its spaces. Chat
        # messages, which are no str, give their assistant turn.
        solution = value if isinstance(value, str) else text_of(value, column)
        # The model's own answer may be wrong, so the response's column is left out here.
        others = [name for name in candidates["reference"] if name != column]
        _, text = _first_text(fields, others)
        # `text` may be a worked solution with a marked answer, as in MATH's column `solution`. Then
        # `worked` is (answer, solution), and only the answer counts; None without a mark.
        worked = read_worked(text)
        reference = worked[0] if worked else text
    else:
        reference, solution = _reference_and_solution(
            fields, candidates, reference_is_named=bool((columns or {}).get("reference"))
        )
    level = label(_first_value(fields, candidates["level"])[1])
    # MATH's "Level 5" and MATH-500's 5 (here "5") become 5; a level without a number stays text.
    number = _LEVEL.fullmatch(level)
    return Problem.create(
        problem=required_text(fields, candidates["problem"], field="problem", role="user"),
        reference=reference,
        solution=solution,
        subject=label(_first_value(fields, candidates["subject"])[1]),
        level=int(number[1]) if number else level,
        tags=tags,
    )


def _candidates(columns: Mapping[str, str]) -> dict[str, Sequence[str]]:
    """Return the columns to try by field of the problem, in order; () for an unset field."""
    named = {field: (column,) if column else () for field, column in columns.items()}
    return {**FIELD_COLUMNS, **named}


def label(value: Any) -> str:
    """Convert a cell to a subject or level: one short printable line; '' for any other value.

    Labels are optional, and become names in tables and charts: neither NaN nor a list refuses its
    row, and no control character or name of JavaScript's objects is kept.
    """
    text = _line(value) or ""
    if not text.isprintable():
        text = "".join(filter(str.isprintable, text))
    return "" if _OBJECT_NAMES.fullmatch(text) else excerpt(text, LABEL_LENGTH)


def _line(value: Any) -> str | None:
    """Return a cell as text on one line; None for a value that is neither text nor a number."""
    try:
        return " ".join(text_of(value, "").split())
    except RowFault:
        return None


def cleaned_labels(fields: Fields, columns: Mapping[str, str]) -> tuple[str, ...]:
    """Return which of `subject` and `level` a problem does not have as its row has them."""
    candidates = _candidates(columns)
    values = {name: _first_value(fields, candidates[name])[1] for name in ("subject", "level")}
    return tuple(name for name, value in values.items() if _line(value) != label(value))


# Other sets' names of columns, all lower-case, the likelier first.
OTHER_COLUMNS = {
    field: tuple(names.split())
    for field, names in {
        "problem": "problem question prompt instruction query messages conversations input",
        "reference": "answer final_answer reward_model.ground_truth extra_info.answer ground_truth "
        "expected_answer reference_answer gold target label",
        "solution": "solution response completion output rationale r1_solution_1 messages "
        "conversations",
    }.items()
}
# Beside a question, such a column holds the first half of the problem.
_CONTEXT = {"body", "context", "passage"}


def guess_columns(fields: Fields) -> dict[str, str]:
    """Return the param `columns` with which the table reads a row; {} if there is no such guess.

    The fewest fields that are enough: for chat `messages`, both problem and solution.
    """
    names = {name.lower(): name for name in fields}
    for name, inner in fields.items():
        if isinstance(inner, Mapping):
            names |= {f"{name}.{below}".lower(): f"{name}.{below}" for below in inner}
    if _CONTEXT & names.keys():
        return {}
    guesses = {
        field: [
            names[other]
            for other in others
            if other in names and names[other] not in FIELD_COLUMNS[field]
        ][:1]
        for field, others in OTHER_COLUMNS.items()
    }
    available = [field for field, columns in guesses.items() if columns]
    for size in range(1, len(available) + 1):
        for named in itertools.combinations(available, size):
            columns = {field: guesses[field][0] for field in named}
            with contextlib.suppress(RowFault):
                to_problem(fields, columns)
                return columns
    return {}


def _reference_and_solution(
    fields: Fields, candidates: Mapping[str, Sequence[str]], *, reference_is_named: bool
) -> tuple[str, str]:
    """Return a row's reference and its solution; the solution is '' if there is none.

    The reference is the answer marked in a text (`#### N`, `\\boxed{}`). A text without such a mark
    is the reference if it can only be an answer.

    Args:
        candidates: field of the problem → columns to try, in this order.
        reference_is_named: True if params name the reference's column. No other column is then
            tried, and its text is the answer even if it is long.

    Raises:
        RowFault: there is no answer, or it cannot be told from a solution.
    """
    # ("", "") if all columns are empty.
    column, text = _first_text(fields, candidates["reference"])
    if not column:
        # Without a reference column, the answer has to be marked in the solution.
        if not reference_is_named:
            column, text = _first_text(fields, candidates["solution"])
        if not column:
            raise _absent(fields, candidates["reference"], field="reference")
        # (answer, solution); None if the text marks no answer.
        if worked := read_worked(text):
            return worked
        detail = "no answer column, and no `#### N` or \\boxed{} in the solution"
        raise RowFault("undecidable", field=column, detail=detail)
    # Columns that may hold the solution, except the column of `text`.
    others = [name for name in candidates["solution"] if name != column]
    if worked := read_worked(text):
        reference, solution = worked
        # '' if the text is the marked answer only: the solution is then in another column.
        return reference, solution or _solution(fields, others)
    # The text marks no answer, and may itself be a solution. It is the answer in three cases:
    # - params name its column;
    # - its column is not `solution`, and another column has the solution (`solution_column`, which
    #   is '' if there is none);
    # - it is one short line (`is_bare`).
    solution_column, _ = _first_value(fields, [name for name in SOLUTION if name != column])
    is_answer = reference_is_named or (column != "solution" and solution_column) or is_bare(text)
    if not is_answer:
        detail = f"cannot tell whether this is an answer or a solution: {excerpt(text, 60)!r}"
        raise RowFault("undecidable", field=column, detail=detail)
    return text, _solution(fields, others)


def _solution(fields: Fields, candidates: Sequence[str]) -> str:
    """Return the worked solution of the first nonempty column, as `read_worked` has it; or ''."""
    _, text = _first_text(fields, candidates)
    worked = read_worked(text)
    return worked[1] if worked else text


def required_text(
    fields: Fields, candidates: Sequence[str], *, field: str, role: str = "assistant"
) -> str:
    """Return the stripped text of the first nonempty column.

    Args:
        candidates: columns to try, in this order.
        field: the field of the problem that needs the text, for the error.
        role: "user" or "assistant". If the value is chat messages, the text is that of the only
            turn with this role. Other turns are dropped: `prompt.system` replaces a system turn.

    Raises:
        RowFault: all columns are empty, or the value is no text and has no such turn.
    """
    # ("", "") if all columns are empty.
    column, value = _first_value(fields, candidates)
    if not column:
        raise _absent(fields, candidates, field=field)
    return text_of(value, column, role=role)


def _first_text(fields: Fields, candidates: Sequence[str]) -> tuple[str, str]:
    column, value = _first_value(fields, candidates)
    return column, text_of(value, column)


def _first_value(fields: Fields, candidates: Sequence[str]) -> tuple[str, Any]:
    """Return (name, value) of the first nonempty column; ("", "") if all are empty."""
    for name in candidates:
        # None if the column is missing.
        value = _cell(fields, name)
        is_blank = value == [] or (isinstance(value, str) and not value.strip())
        # Not `if value`: the number 0 is an answer.
        if value is not None and not is_blank:
            return name, value
    return "", ""


def _cell(fields: Fields, name: str) -> Any:
    """Return a column's value; "a.b" is the field "b" inside the column "a". None if missing."""
    if name in fields:
        return fields[name]
    above, _, below = name.partition(".")
    inner = fields.get(above)
    return _cell(inner, below) if isinstance(inner, Mapping) else None


def _absent(fields: Fields, candidates: Sequence[str], *, field: str) -> RowFault:
    """Return the fault of a row in which all these columns are empty or missing.

    Args:
        candidates: names of the columns.
        field: the field of the problem that needs one of them.
    """
    # Columns that the row has, though they are empty. If there is one, the fault names it;
    # otherwise it names all columns that were expected. `_cell` is None for a missing column.
    blank = [name for name in candidates if _cell(fields, name) is not None]
    if blank:
        return RowFault("empty_field", field=blank[0], detail="is empty")
    expected = " or ".join(f"`{name}`" for name in candidates)
    # Iterating over a row gives its column names.
    detail = f"missing; expected {expected}, the row has {', '.join(map(str, fields)) or 'nothing'}"
    return RowFault("missing_field", field=field, detail=detail)


def text_of(value: Any, field: str, *, role: str = "assistant") -> str:
    """Convert a cell to stripped text: a text, a number, or the only chat turn of `role`.

    27.0 -> "27", 0.1 + 0.2 -> "0.3", [{"role": "assistant", "content": "72"}] -> "72"

    A float keeps the 15 digits that every decimal of that length survives; the 16th and 17th are
    those of the binary number, which no one would write. Chat messages may also be in ShareGPT's
    form (`from`, `value`), or written as text.

    Args:
        field: name of the column, for the error.

    Raises:
        RowFault: another type, NaN or infinity, a lone surrogate, or no single turn of the role.
    """
    if isinstance(value, str) and _CHAT_TEXT.match(value):
        value = _written_chat(value, field)
    turns = _turns(value) if isinstance(value, list) else None
    if turns is not None:
        contents = [content for speaker, content in turns if speaker == role]
        if len(contents) != 1:
            detail = f"expected one message of the {role}, found {len(contents)}"
            raise RowFault("wrong_type", field=field, detail=detail)
        value = contents[0]
    if isinstance(value, str) and len(value) > MAX_JSON:
        detail = f"a text of {len(value)} characters, more than {MAX_JSON}"
        raise RowFault("wrong_type", field=field, detail=detail)
    if isinstance(value, str):
        try:
            # A lone surrogate is a valid str but cannot be written as UTF-8.
            value.encode()
        except UnicodeEncodeError as error:
            detail = f"not Unicode text at character {error.start + 1}"
            raise RowFault("bad_utf8", field=field, detail=detail) from error
        return value.strip()
    # bool is an int in Python: True would become "1".
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        detail = f"expected text or a number, found {type(value).__name__}"
        raise RowFault("wrong_type", field=field, detail=detail)
    if isinstance(value, int):
        return str(value)
    number = Decimal(f"{value:.15g}") if isinstance(value, float) else value
    if not number.is_finite():
        raise RowFault("wrong_type", field=field, detail=f"expected a number, found {value}")
    if abs(number.adjusted()) >= MAX_ZEROS:
        return f"{number:e}"
    # 0.0000001, not 1E-7.
    text = f"{number:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _turns(value: Sequence[Any]) -> list[tuple[str, Any]] | None:
    """Return (role, content) of each chat message; None if these are no chat messages."""
    turns: list[tuple[str, Any]] = []
    for turn in value:
        if not isinstance(turn, Mapping):
            return None
        speaker, content = ("role", "content") if "role" in turn else ("from", "value")
        if not {speaker, content} <= turn.keys():
            return None
        parts = turn[content]
        # Content in parts, as for models that also read images.
        if isinstance(parts, list) and all(
            isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in parts
        ):
            parts = "".join(part["text"] for part in parts)
        role = str(turn[speaker])
        turns.append((_CHAT_ROLES.get(role, role), parts))
    return turns


def _written_chat(text: str, field: str) -> Any:
    """Parse chat messages written as text, as JSON or as a Python list.

    Raises:
        RowFault: it is neither.
    """
    for parse in (parse_json, ast.literal_eval):
        try:
            return parse(text.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            pass
    detail = "chat messages written as text, but not as JSON; expected a list of messages"
    raise RowFault("wrong_type", field=field, detail=detail)


def read_worked(text: str) -> tuple[str, str] | None:
    """Split a text that ends in `#### N` or holds a `\\boxed{}` into answer and solution.

    ::

        "48/2 = <<48/2=24>>24 clips\\n#### 24"  ->  "24", "48/2 = 24 clips"
        "So $x = \\boxed{2}$."                 ->  "2", "So $x = \\boxed{2}$."
        "$\\boxed{2}$."                        ->  "2", ""

    The solution is '' if the text is only the answer. Returns None if no answer is marked. GSM8K's
    calculator marks (`<<48/2=24>>`) and last line are removed; MATH's solution keeps its box.
    """
    # Stripped before the search: a pattern that matched the white space itself would take quadratic
    # time on long runs of it.
    if final := _FINAL.search(text.rstrip()):
        solution = _CALCULATOR.sub("", text[: final.start()]).strip()
        answer = final["answer"].strip()
        # A text that ends in a bare `####` marks no answer.
        return (plain_number(answer), solution) if answer else None
    box = last_box(text)
    if box is None or not box.content:
        return None
    around = text[: box.start] + text[box.end :]
    # `$\boxed{2}$.` has no solution: math delimiters and a full stop are no text.
    only_box = not _DELIMITERS.sub("", around)
    return box.content, "" if only_box else text.strip()


def plain_number(text: str) -> str:
    """Remove currency sign and thousands separators from a number; return other text as it is.

    `$1,234.50` becomes `1234.50`, `-7` stays.
    """
    number = _NUMBER.fullmatch(text.strip())
    # All parts of the pattern are optional, so that it also matches "" and "$", without digits.
    if not number or not number["digits"]:
        return text.strip()
    # U+2212, the typographic minus, becomes a hyphen.
    sign = "-" if number["sign"] in ("-", "−") else ""
    return sign + number["digits"].replace(",", "")


def is_bare(text: str) -> bool:
    """Return True if a text can only be an answer: one short line without four words in a row."""
    line = text.strip()
    # LaTeX commands are removed first: they are no words of prose.
    fits = "\n" not in line and len(line) <= BARE_LENGTH
    return fits and not _PROSE.search(_LATEX.sub(" ", line))
