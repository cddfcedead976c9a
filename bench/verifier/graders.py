"""Graders for comparison: `(completion or answer, reference, form, problem) -> bool`."""

from collections.abc import Callable
from typing import Any

Grader = Callable[[str, str, str, str], bool]


def reckon(text: str | None, reference: str, form: str, problem: str) -> bool:
    """Grade by the verifier of this checkout, worker included."""
    from reckon_verifier import extract_answer, is_equivalent

    answer = extract_answer(text or "") if form == "text" else text
    return is_equivalent(reference=reference, answer=answer, problem=problem or None)


def math_verify(text: str, reference: str, form: str, problem: str) -> bool:
    """Grade by math-verify 0.9.0 with its defaults; bare answers in dollars, as in its README."""
    from math_verify import parse, verify

    wrapped = text if form == "text" else f"${text}$"
    right: Any = parse(f"${reference}$") if "$" not in reference else parse(reference)
    return bool(verify(right, parse(wrapped)))


def disagreements(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """List the rows of a golden file on which reckon's verdict is not `equal`."""
    return [
        row
        for row in rows
        if reckon(row["answer"], row["reference"], "answer", row.get("problem", "")) != row["equal"]
    ]


GRADERS: dict[str, Grader] = {"reckon": reckon, "math-verify": math_verify}
