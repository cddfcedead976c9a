"""The steps by which an answer is decided, the rows of rules.tsv, and the comparison by them.

Of several parts, the step is the first that is not exact, so that a policy that lives on one is
seen.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lib.verifier.tree import (
    Node,
    TooHard,
    Undecided,
    free_symbols,
    is_name,
    names,
    symbol,
)

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


def _read() -> tuple[Rule, ...]:
    with SOURCE.open(encoding="utf-8", newline="") as lines:
        # Unquoted: LaTeX stands in the file as it is.
        _, *rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    return tuple(
        Rule(name, int(count), what, (*right,), (reference, answer, problem), decides == "proof")
        for name, count, decides, what, *right, problem, reference, answer in rows
    )


TABLE: tuple[Rule, ...] = _read()
"""Every step once."""

REFUSALS = {
    "echo": "a formula or the text of the problem, repeated",
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


class Verdict(NamedTuple):
    """A decision and the step that took it."""

    equal: bool
    decided_by: str

    def via(self, step: str) -> "Verdict":
        """Return the same, by a conversion; what is not exact stays visible."""
        return self if self.decided_by in INEXACT else Verdict(self.equal, step)


INTERVALS = names("() [] (] [)")
_MAX_MATCHED = 50


class Comparer(NamedTuple):
    """Compares a reference with an answer to one problem.

    Attributes:
        problem: its text, which says what may go unsaid; '' where it is not known.
        rules: each decides, or leaves it to the next; with the kinds of which one side must be, ''
            where any may.
    """

    problem: str
    rules: Mapping["Comparison", str]

    def same(self, reference: Node, answer: Node) -> Verdict:
        """Return True if `answer` is as good as `reference`.

        Raises:
            Undecided, TooHard: see `same_expression`.
        """
        # The same tree; but 1 = 1 answers nothing, not even itself.
        if reference == answer and not is_vain(reference):
            return Verdict(True, "structure")
        for rule, kinds in self.rules.items():
            if not kinds or {reference.kind, answer.kind} & {*kinds.split()}:
                decision = rule(self, reference, answer)
                if decision is not None:
                    return decision
        raise Undecided("kinds that no rule compares")

    def equal(self, reference: Node, answer: Node) -> bool:
        """Return the decision of `same` without its step."""
        return self.same(reference, answer).equal

    def in_order(
        self, expected: Sequence[Node], actual: Sequence[Node], step: str, reach: int = 1
    ) -> Verdict:
        """Return True if there are as many of both, and each has a partner: the first that is
        left, or one of so many.
        """
        if len(expected) != len(actual):
            return Verdict(False, step)
        rest, steps = list(actual), []
        for item in expected:
            for place, other in enumerate(rest[:reach]):
                decision = self.same(item, other)
                if decision.equal:
                    steps.append(decision.decided_by)
                    # Each partner once: (1, 1, 2) is not (1, 2, 2).
                    del rest[place]
                    break
            else:
                return Verdict(False, step)
        return Verdict(True, next((name for name in steps if name in INEXACT), step))

    def in_any_order(self, expected: Sequence[Node], actual: Sequence[Node], step: str) -> Verdict:
        """Return True if each element of one has a partner in the other, in any order."""
        # Matching is quadratic in the elements.
        if len(expected) == len(actual) > _MAX_MATCHED:
            raise TooHard("elements")
        return self.in_order(expected, actual, step, _MAX_MATCHED)


Comparison = Callable[[Comparer, Node, Node], Verdict | None]


def either(kind: str, one: Node, two: Node) -> bool:
    """Return True if one of two trees is of a kind."""
    return kind in (one.kind, two.kind)


def is_vain(node: Node) -> bool:
    """Return True for a relation of constants, such as `0 = 0`, which answers nothing."""
    return (
        node.kind == "relation"
        and not any(free_symbols(part) or is_name(part) for part in node.args)
        and not (node.name == "=" and node.args[0] in (symbol("e"), symbol("i")))
    )
