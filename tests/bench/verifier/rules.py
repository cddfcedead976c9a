"""Decisions of the verifier's steps on the labelled sets, and the page's table of them."""

import collections
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lib.verifier import compare, extract_answer
from lib.verifier.rules import REFUSALS, SOURCE, TABLE, Rule
from tests.bench.verifier.references import rows_of

PAGE = Path(__file__).parents[3] / "docs" / "verifier.md"

Case = tuple[str, str, str]
"""Reference, answer, problem."""


def right_answers(folder: Path) -> Iterator[Case]:
    """Yield every right answer of the labelled sets, extracted from whole outputs."""
    for path in sorted((folder / "grading").rglob("*.jsonl")):
        for row in rows_of(path):
            if bool(row.get("equal", row.get("label", "marked_answer" in row))):
                yield str(row.get("marked_answer", row["gold"])), _answer(row), _problem(row)


def _answer(row: dict[str, Any]) -> str:
    is_bare = "pred" in row and row.get("form") != "text"
    return str(row["pred"] if is_bare else extract_answer(row.get("response") or row["pred"]))


def _problem(row: dict[str, Any]) -> str:
    return row.get("question") or row.get("problem") or ""


def earned(folder: Path) -> dict[str, int]:
    """Count right answers of the labelled sets by the deciding step."""
    counts = collections.Counter(map(_decided, right_answers(folder)))
    return {rule.name: counts[rule.name] for rule in TABLE}


def _decided(case: Case) -> str:
    """Return the rule of a right answer, '' for a refused one."""
    reference, answer, problem = case
    verdict = compare(reference=reference, answer=answer, problem=problem or None)
    return verdict.decided_by if verdict.equal else ""


def table() -> str:
    """Render the page's table of rules, and the names of the refusals."""
    lines = ["|step|rows|what is compared|equal|not equal|", "|---|--:|---|---|---|"]
    lines += [
        f"|{rule.name}{_mark(rule)}|{rule.rows}|{rule.description}|{_pair(rule.right)}|{_pair(rule.wrong)}|"
        for rule in TABLE
    ]
    refusals = ", ".join(f"`{name}` ({description})" for name, description in REFUSALS.items())
    return "\n".join([*lines, "", f"Refused: {refusals}.", ""])


def _mark(rule: Rule) -> str:
    """Mark evidence without proof."""
    return "" if rule.is_exact else " ≈"


def _pair(example: tuple[str, ...]) -> str:
    return ", ".join(f"`{text}`".replace("|", "\\|") for text in example[:2])


def write(rows: dict[str, int]) -> None:
    """Write each rule's rows beside it in the source."""
    text = SOURCE.read_text(encoding="utf-8")
    for name, count in rows.items():
        text, places = re.subn(rf"(?m)^{name}\t\d+", f"{name}\t{count}", text)
        if places != 1:
            raise LookupError(f"{SOURCE}: {places} rules are called {name!r}, expected one")
    SOURCE.write_text(text, encoding="utf-8")


def write_page() -> None:
    """Write the table between the marks of the page."""
    before, mark, rest = PAGE.read_text(encoding="utf-8").partition("<!-- rules -->\n")
    _, end, after = rest.partition("<!-- end of rules -->\n")
    PAGE.write_text(before + mark + table() + end + after, encoding="utf-8")
