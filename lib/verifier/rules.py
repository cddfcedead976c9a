"""The steps by which an answer is decided (the rows of rules.tsv), and the comparison by them.

If an answer has several parts, its step is the first that is evidence and no proof. The metrics
then show a policy that gets its reward from such a step.
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
        name: the value of `decided_by`.
        rows: number of right answers in the labelled sets that it decides; `python -m
            tests.bench.verifier rules --write` measures and writes it.
        description: its meaning, in words for a reader.
        right: a reference and an answer that it makes equal, and a problem or ''.
        wrong: a similar reference, answer and problem, which stay unequal.
        is_exact: whether it proves its decision; other steps are evidence, which metrics count.
    """

    name: str
    rows: int
    description: str
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    is_exact: bool = True


def _read() -> tuple[Rule, ...]:
    """Return the rows of rules.tsv."""
    with SOURCE.open(encoding="utf-8", newline="") as lines:
        # Without quoting, LaTeX needs no escapes in the file.
        _, *rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    return tuple(
        Rule(name, int(count), what, (*right,), (reference, answer, problem), decides == "proof")
        for name, count, decides, what, *right, problem, reference, answer in rows
    )


TABLE: tuple[Rule, ...] = _read()
"""Every step, in the order of rules.tsv."""

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
"""Reasons to refuse an answer that is not just different from the reference."""

INEXACT = tuple(rule.name for rule in TABLE if not rule.is_exact)
"""Steps that are evidence, not proof."""

DESCRIPTIONS = {rule.name: rule.description for rule in TABLE} | REFUSALS
"""What `decided_by` means, in words for a reader."""


class Verdict(NamedTuple):
    """A decision, and the name of the step that decided."""

    equal: bool
    decided_by: str

    def via(self, step: str) -> "Verdict":
        """Return the same decision, decided by `step`; a step that is not exact keeps its name."""
        return self if self.decided_by in INEXACT else Verdict(self.equal, step)


INTERVALS = names("() [] (] [)")
_MAX_MATCHED = 50


class Comparer(NamedTuple):
    """Compares a reference with an answer to one problem.

    Attributes:
        problem: the problem's text, '' if it is not known; it settles what may be left out.
        rules: in order, each with the kinds of nodes of which one side must be, '' for any kind; a
            rule that cannot decide returns None, and the next one is asked.
    """

    problem: str
    rules: Mapping["Comparison", str]

    def same(self, reference: Node, answer: Node) -> Verdict:
        """Decide whether `answer` is as good as `reference`.

        Raises:
            Undecided, TooHard: see `same_expression`.
        """
        # The same tree. But 1 = 1 is no answer, and equals nothing.
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
        """Decide whether both have the same number of elements, equal in pairs.

        Each element of `expected` is compared with the first `reach` elements of `actual` that have
        no partner yet; with a `reach` of 1, the order counts.
        """
        if len(expected) != len(actual):
            return Verdict(False, step)
        rest, steps = list(actual), []
        for item in expected:
            for place, other in enumerate(rest[:reach]):
                decision = self.same(item, other)
                if decision.equal:
                    steps.append(decision.decided_by)
                    # A partner is used once: (1, 1, 2) is not (1, 2, 2).
                    del rest[place]
                    break
            else:
                return Verdict(False, step)
        return Verdict(True, next((name for name in steps if name in INEXACT), step))

    def in_any_order(self, expected: Sequence[Node], actual: Sequence[Node], step: str) -> Verdict:
        """Decide whether both have the same elements, in any order.

        Raises:
            TooHard: there are more than `_MAX_MATCHED` elements.
        """
        # The number of comparisons is quadratic in the number of elements.
        if len(expected) == len(actual) > _MAX_MATCHED:
            raise TooHard("elements")
        return self.in_order(expected, actual, step, _MAX_MATCHED)


Comparison = Callable[[Comparer, Node, Node], Verdict | None]


def either(kind: str, one: Node, two: Node) -> bool:
    """Return True if at least one of two trees is of this kind."""
    return kind in (one.kind, two.kind)


def is_vain(node: Node) -> bool:
    """Return True for a relation of constants, such as `0 = 0`, which answers nothing.

    `e = 1/2` and `i = 2` are not vain: e and i may be names.
    """
    return (
        node.kind == "relation"
        and not any(free_symbols(part) or is_name(part) for part in node.args)
        and not (node.name == "=" and node.args[0] in (symbol("e"), symbol("i")))
    )
