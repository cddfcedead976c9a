"""The steps by which an answer is decided: the rows of rules.tsv, which docs/verifier.md prints."""

import csv
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("rules.tsv")


class Rule(NamedTuple):
    """A step of the comparison, or a conversion between kinds.

    Attributes:
        name: what `decided_by` says.
        rows: right answers of the labelled sets that it decides; `python -m tests.bench.verifier
            rules --write` measures and writes it.
        right: a reference and an answer that it makes equal, and the problem where it needs one.
        wrong: a look-alike that stays unequal.
        is_exact: whether it is a proof; what is not is evidence, and counted in metrics.
    """

    name: str
    rows: int
    description: str
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    is_exact: bool = True


def _example(row: dict[str, str], side: str) -> tuple[str, ...]:
    return tuple(row[f"{side}_{part}"] for part in ("reference", "answer", "problem"))


def _read() -> tuple[Rule, ...]:
    with SOURCE.open(encoding="utf-8", newline="") as lines:
        # Unquoted: LaTeX stands in the file as it is.
        return tuple(
            Rule(
                row["name"],
                int(row["rows"]),
                row["description"],
                _example(row, "right"),
                _example(row, "wrong"),
                is_exact=row["decides"] == "proof",
            )
            for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        )


TABLE: tuple[Rule, ...] = _read()
"""Every step once."""

REFUSALS = {
    "echo": "a formula or the text of the problem, repeated",
    "vain": "a relation of constants, which states nothing",
    "no answer": "no answer, which equals nothing",
    "unparsed": "a character that the grammar does not read",
    "undecided": "neither equal nor different for certain",
    "limit": "too large to compare",
    "timeout": "computer algebra took too long",
    "over budget": "computer algebra had no time left for this batch",
    "worker failure": "computer algebra broke down",
    "symbolic failure": "computer algebra broke down on this question",
    "failure": "a fault of the verifier",
}
"""Why an answer is refused, where it is not simply another."""

INEXACT = tuple(rule.name for rule in TABLE if not rule.is_exact)
"""Steps that are evidence, not proof."""

DESCRIPTIONS = {rule.name: rule.description for rule in TABLE} | REFUSALS
"""What `decided_by` means, in words for a reader."""


class Decision(NamedTuple):
    """An equality decided, with the step that decided."""

    equal: bool
    step: str

    def via(self, step: str) -> "Decision":
        """Return the same, by a conversion; what is not exact stays visible."""
        return self if self.step in INEXACT else Decision(self.equal, step)
