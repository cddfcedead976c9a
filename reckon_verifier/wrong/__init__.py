"""Answers wrong by construction, to try a verifier or a reward with."""

from collections.abc import Iterator

from reckon_verifier.wrong.edits import EDITS
from reckon_verifier.wrong.families import FAMILIES, Case, Family, derived

KINDS: dict[str, Family] = FAMILIES | EDITS
"""All changes of a reference that are wrong by construction."""


def changes(reference: str, problem: str, number: int) -> Iterator[tuple[str, str, bool]]:
    """Yield each kind with one wrong answer, and whether it is a completion.

    Args:
        number: selects one of a kind's wrong answers; different problems try different ones.
    """
    text = Case(reference).text
    for kind, family in KINDS.items():
        pairs = [pair for pair in derived(family, {reference: problem}) if pair.reference == text]
        for pair in pairs[number % max(len(pairs), 1) :][:1]:
            yield kind, pair.answer, pair.is_text
