"""Decide which rows of a source a set can use; the others are counted, or end `prepare`."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from lib.artifacts.problems import INSTRUCTION, Problem
from lib.core.errors import UserError
from lib.problems.columns import guess_columns
from lib.problems.rows import Fields, RawRow, RowFault
from lib.problems.sources import SourceRows
from lib.problems.store import Drops
from reckon_verifier import is_placeholder, reference_problem

TaskFault = Callable[[Problem], str]
"""Returns why a task's verdict refuses a problem's own reference; '' if it accepts it."""


def good_rows(
    rows: SourceRows,
    drops: Drops,
    bad_rows: Literal["error", "drop"],
    *,
    origin: str = "the source",
    bare_answers: bool = True,
    truths: Mapping[str, str] | None = None,
    task: TaskFault | None = None,
) -> Iterator[Problem]:
    """Yield a source's usable problems; count the bad rows in `drops`, or raise.

    Args:
        rows: each with its problem, or with its fault if it gave no problem.
        bad_rows: "error" raises at the first bad row, "drop" counts it and goes on.
        origin: the source's name in the error of one without rows.
        bare_answers: True if rows without a worked solution are good.
        truths: references by problem id (`truth_from`); they replace the rows' own.
        task: see `gathered_sets`.

    Raises:
        UserError: a bad row unless `bad_rows` is "drop"; no good row; or, whatever `bad_rows`, a
            column that may hold answers or solutions (fault "undecidable").
    """
    num_good, first_error = 0, ""
    for row, problem in rows:
        drops.num_read += 1
        if isinstance(problem, Problem):
            if truths is not None:
                # '' if the problem is not in that source; `_unusable` refuses an empty reference.
                problem = dataclasses.replace(problem, reference=truths.get(problem.id, ""))
            fault = _unusable(problem, bare_answers=bare_answers, task=task)
            if not fault:
                num_good += 1
                drops.changed.update(row.cleaned)
                yield problem
                continue
            text = problem.problem
        else:
            # A RowFault: the row gave no problem.
            fault, text = problem, ""
        # An undecidable column affects every row and needs params, so `drop` does not hide it.
        ends = bad_rows == "error" or fault.reason == "undecidable"
        # The first error is kept for the case that every row is dropped.
        if ends or not (num_good or first_error):
            mend, is_of_params = _remedy(row, fault)
            first_error = f"{row.place}: {fault}; {mend}"
            if ends:
                drop = ", or set `prepare.bad_rows: drop` to leave such rows out and count them"
                raise UserError(f"{first_error}{'' if is_of_params else drop}")
        drops.add(fault.reason, row=row.place, detail=str(fault), text=text)
    if not num_good:
        first = f"{first_error}; no row is good, this is the first"
        raise UserError(first if first_error else f"{origin} has no row")


def _remedy(row: RawRow, fault: RowFault) -> tuple[str, bool]:
    """Return what to do about a bad row, and whether only params can mend it.

    Where columns have other names, all rows are bad: dropping them is no remedy.
    """
    fields: Fields = {} if isinstance(row.fields, RowFault) else row.fields
    if fault.reason == "missing_field" and (columns := guess_columns(fields)):
        named = ", ".join(f"{field}: {column}" for field, column in columns.items())
        return f"set `columns: {{{named}}}` of this source", True
    by_columns = fault.reason in ("undecidable", "missing_field")
    mend = "name its columns in `columns:`" if by_columns else "mend the row"
    return mend, fault.reason == "undecidable"


def _unusable(problem: Problem, *, bare_answers: bool, task: TaskFault | None) -> RowFault | None:
    """Return the fault of a problem that its set cannot use; None if the set can use it.

    A usable problem has a solution (unless `bare_answers`), and a reference that the verifier can
    compare answers with, or that the task accepts; an instruction needs no reference.
    """
    if not (bare_answers or problem.solution):
        detail = "no worked solution; set `bare_answers: true` if bare answers are meant"
        return RowFault("missing_field", field="solution", detail=detail)
    if INSTRUCTION in problem.tags:
        return None
    if not problem.reference:
        detail = "no reference of its own; name a set that has it in `truth_from:`"
        return RowFault("missing_field", field="reference", detail=detail)
    if task:
        detail = task(problem)
        return RowFault("unparseable_answer", field="reference", detail=detail) if detail else None
    if is_placeholder(problem.reference):
        detail = f"{problem.reference!r} stands for no answer"
        return RowFault("placeholder", field="reference", detail=detail)
    # The reason why the verifier cannot read the reference; None if it can.
    if reason := _reference_problem(problem.reference):
        detail = f"{problem.reference!r} cannot be graded by: {reason}"
        return RowFault("unparseable_answer", field="reference", detail=detail)
    return None


# Many problems have one small number as their answer.
_reference_problem = functools.lru_cache(2**15)(reference_problem)
