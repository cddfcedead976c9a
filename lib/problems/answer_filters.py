"""Filters on what the answer is: numbers alone, and workings that reach it."""

import re

from lib.problems.drops import Drops
from lib.problems.schema import Problem
from lib.problems.store import ProblemTable, where
from lib.verifier import extract_answer, is_equivalent

NOT_NUMERIC = "answer_not_numeric"
NOT_CORRECT = "solution_not_correct"

_NUMERIC = re.compile(r"[-+−]?\$?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:e[-+]?\d+)?", re.I)


def is_numeric(reference: str) -> bool:
    """Whether an answer is one integer or decimal, with or without thousands separators."""
    text = reference.strip()
    return any(sign.isdigit() for sign in text) and bool(_NUMERIC.fullmatch(text))


def keep_numeric(table: ProblemTable, *, drops: Drops) -> ProblemTable:
    """Keep problems whose reference is a number."""

    def kept(problem: Problem) -> bool:
        if is_numeric(problem.reference):
            return True
        drops.add(NOT_NUMERIC, row=problem.id, detail=problem.reference, text=problem.problem)
        return False

    return where(table, kept)


def keep_correct(table: ProblemTable, *, drops: Drops) -> ProblemTable:
    """Keep problems whose worked solution comes to the reference.

    A problem without a working stays: there is nothing in it to be wrong. Of a working that marks
    no answer the last number counts, which suits model-written workings; GSM8K's own lose their
    `####` line before this and would lose 3 % of the rows here without being wrong.
    """

    def kept(problem: Problem) -> bool:
        answer = extract_answer(problem.solution) if problem.solution else problem.reference
        if is_equivalent(reference=problem.reference, answer=answer):
            return True
        detail = f"the working comes to {answer}, the reference is {problem.reference}"
        drops.add(NOT_CORRECT, row=problem.id, detail=detail, text=problem.problem)
        return False

    return where(table, kept)
