"""The names of the comparison steps (the rows of rules.tsv), and `Comparer`, which applies rules.

A `Verdict` names the step that decided: "unit" for `5 cm` and `50 mm`. If an answer has several
parts, the first step without proof is named, since the metrics must show a policy that gets its
reward from such a step.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from reckon_verifier.tree import (
    Node,
    TooHard,
    Undecided,
    free_symbols,
    is_name,
    symbol,
)

SOURCE = Path(__file__).with_name("rules.tsv")


class Rule(NamedTuple):
    """A row of rules.tsv: one step of the comparison, with its documentation and examples.

    Attributes:
        name: the value of `Verdict.decided_by`.
        rows: number of right answers in the labelled sets that it decides; `python -m
            bench.verifier rules --write` measures and writes it.
        description: its meaning, in words for a reader.
        right: (reference, answer, problem or '') that it makes equal.
        wrong: a similar (reference, answer, problem or ''), which stays unequal.
        is_exact: whether it proves its decision; other steps are evidence, which metrics count.
    """

    name: str
    rows: int
    description: str
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    is_exact: bool = True


def _read() -> tuple[Rule, ...]:
    """Return the rows of rules.tsv without its header, its columns in the order of `Rule`.

    `decides` is "proof" or "evidence"; an example is reference, answer, problem.
    """
    # Without quoting, LaTeX needs no escapes in the file.
    _, *rows = SOURCE.read_text(encoding="utf-8").splitlines()
    cells = (row.split("\t") for row in rows)
    return tuple(
        Rule(name, int(count), what, (*examples[:3],), (*examples[3:],), decides == "proof")
        for name, count, decides, what, *examples in cells
    )


TABLE: tuple[Rule, ...] = _read()
"""Every step, in the order of rules.tsv."""

REFUSALS = {
    "echo": "a formula or the text of the problem, repeated, also rewritten",
    "no answer": "no answer, or a placeholder as the reference: nothing equals it",
    "unparsed": "a text that the grammar does not read, or reads in several ways",
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
    """A decision, and the name of the step that decided (a key of `DESCRIPTIONS`)."""

    equal: bool
    decided_by: str

    def via(self, step: str) -> "Verdict":
        """Return the same decision with `step` as its name; a step that is not exact stays.

        10 % and 0.1, once compared as numbers, are decided by "number"; `.via("percent")` names
        the step that made them numbers.
        """
        return self if self.decided_by in INEXACT else Verdict(self.equal, step)


MAX_MATCHED = 50
"""Elements that are compared in any order; the number of comparisons is quadratic in it."""


class Comparer(NamedTuple):
    """Compares the trees of a reference and an answer by the first rule that decides.

    Rules get the comparer itself, so that they can compare parts: a list its elements, a unit its
    number.

    Attributes:
        problem: the problem's text, '' if it is not known. Some rules read it: an answer may add a
            unit only if the problem asks for it.
        rules: comparison functions in order, each with kinds of nodes ("phrase label") and the step
            of its verdicts: the rule applies if either side has one of these kinds, or always with
            ''. A rule that cannot decide returns None, and the next one is tried.
    """

    problem: str
    rules: Mapping["Comparison", tuple[str, str]]

    def same(self, reference: Node, answer: Node) -> Verdict:
        """Decide whether `answer` equals `reference`, and name the step.

        Raises:
            Undecided, TooHard: see `same_expression`.
        """
        # The same tree. A relation of constants, such as 1 = 1 (`is_vain`), may be no answer: it is
        # left to the rules.
        if reference == answer and not is_vain(reference):
            return Verdict(True, "structure")
        for rule, (kinds, step) in self.rules.items():
            if not kinds or {reference.kind, answer.kind} & {*kinds.split()}:
                decision = rule(self, reference, answer)
                if isinstance(decision, bool):
                    decision = Verdict(decision, step)
                if decision is not None:
                    return decision.via(step) if step else decision
        raise Undecided("kinds that no rule compares")

    def equal(self, reference: Node, answer: Node) -> bool:
        """Return True if `same` decides that both are equal."""
        return self.same(reference, answer).equal

    def in_order(
        self, expected: Sequence[Node], actual: Sequence[Node], step: str, reach: int = 1
    ) -> Verdict:
        """Decide whether both sequences have equal elements, in the same order if `reach` is 1.

        Each element of `expected` gets the first equal partner among the first `reach` elements of
        `actual` that have none yet. With a `reach` of the whole length, any order is equal.

        Args:
            expected: elements of the reference.
            actual: elements of the answer.
            step: `decided_by` of the verdict, unless an element is equal only by evidence.
            reach: number of elements of `actual` that are tried for each of `expected`.
        """
        if len(expected) != len(actual):
            return Verdict(False, step)
        rest, steps = list(actual), []
        for item in expected:
            for place, other in enumerate(rest[:reach]):
                decision = self.same(item, other)
                if decision.equal:
                    steps.append(decision.decided_by)
                    # A partner is used once: 1, 1, 2 is not 1, 2, 2.
                    del rest[place]
                    break
            else:
                return Verdict(False, step)
        # The first step that is evidence and no proof (`INEXACT`) names the whole verdict.
        return Verdict(True, next((name for name in steps if name in INEXACT), step))

    def in_any_order(self, expected: Sequence[Node], actual: Sequence[Node], step: str) -> Verdict:
        """Decide whether both have the same elements, each as often, in any order.

        With dots among them, `1, 2, \\ldots`, the order counts.

        Raises:
            TooHard: there are more than `MAX_MATCHED` elements.
        """
        if symbol("ldots") in (*expected, *actual):
            return self.in_order(expected, actual, step)
        # The number of comparisons is quadratic. For different lengths there is none: `in_order`
        # refuses them.
        if len(expected) == len(actual) > MAX_MATCHED:
            raise TooHard("elements")
        return self.in_order(expected, actual, step, MAX_MATCHED)


Comparison = Callable[[Comparer, Node, Node], Verdict | bool | None]
"""A rule: from the comparer, reference and answer to a verdict, or None if it cannot decide."""


def is_vain(node: Node) -> bool:
    """Return True for a relation of constants, such as `0 = 0` or `1 < 2`, without any name.

    `e = 1/2` and `i = 2` are not vain: e and i may be names.
    """
    return (
        node.kind == "relation"
        and not any(free_symbols(part) or is_name(part) for part in node.args)
        and not (node.name == "=" and node.args[0] in (symbol("e"), symbol("i")))
    )
