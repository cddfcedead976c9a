"""Decisions of the verifier's steps on the labelled sets, and the README's table of them."""

import collections
import re
from pathlib import Path

from bench.verifier.references import Labelled, labelled_row, rows_of
from reckon_verifier import compare, extract_answer
from reckon_verifier.rules import REFUSALS, SOURCE, TABLE

PAGE = SOURCE.with_name("README.md")


def earned(folder: Path) -> dict[str, int]:
    """Count right answers of the labelled sets by the deciding step."""
    paths = sorted((folder / "grading").rglob("*.jsonl"))
    rows = (labelled_row(row) for path in paths for row in rows_of(path))
    counts = collections.Counter(_decided(row) for row in rows if row.label)
    return {rule.name: counts[rule.name] for rule in TABLE}


def _decided(row: Labelled) -> str:
    """Return the rule of a right answer, '' for a refused one."""
    answer = extract_answer(row.text) if row.form == "text" else row.text
    verdict = compare(reference=row.reference, answer=answer, problem=row.problem or None)
    return verdict.decided_by if verdict.equal else ""


def table() -> str:
    """Render the README's table of rules, and the refusals; ≈ is evidence, no proof."""
    lines = ["|step|rows|what is compared|equal|not equal|", "|---|--:|---|---|---|"]
    lines += [
        f"|{rule.name}{'' if rule.is_exact else ' ≈'}|{rule.rows}|{rule.description}"
        f"|{_pair(rule.right)}|{_pair(rule.wrong)}|"
        for rule in TABLE
    ]
    refusals = ", ".join(f"`{name}`" for name in REFUSALS)
    return "\n".join([*lines, "", f"Refused: {refusals}.", ""])


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
