"""The comparison of two trees by rules that share a problem, each with the step that decided.

Of several parts, the step is the first that is not exact, so that a policy that lives on one is
seen.
"""

from collections.abc import Callable, Sequence

from lib.verifier.identity import same_expression
from lib.verifier.rules import INEXACT, Decision
from lib.verifier.tree import MAX_ITEMS, Node, TooHard, free_symbols, is_name, names, symbol

INTERVALS = names("() [] (] [)")
_MAX_PAIRS = 2_500


class Comparer:
    """Compares a reference with an answer to one problem.

    Attributes:
        problem: its text, which says what may go unsaid; '' where it is not known.
        rules: each decides, or leaves it to the next.
    """

    def __init__(self, problem: str, rules: Sequence["Rule"]) -> None:
        self.problem, self.rules = problem, rules

    def same(self, reference: Node, answer: Node) -> Decision:
        """Return True if `answer` is as good as `reference`.

        Raises:
            Undecided, TooHard: see `same_expression`.
        """
        # The same tree; but 1 = 1 answers nothing, not even itself.
        if reference == answer and not is_vain(reference):
            return Decision(True, "structure")
        for rule in self.rules:
            decision = rule(self, reference, answer)
            if decision is not None:
                return decision
        return same_expression(reference, answer)

    def equal(self, reference: Node, answer: Node) -> bool:
        """Return the decision of `same` without its step."""
        return self.same(reference, answer).equal

    def in_order(self, expected: Sequence[Node], actual: Sequence[Node], step: str) -> Decision:
        """Return True if there are as many of both, each equal to its partner."""
        steps = []
        for one, two in zip(expected, actual, strict=False):
            decision = self.same(one, two)
            if not decision.equal:
                return Decision(False, step)
            steps.append(decision.step)
        return _all(len(expected) == len(actual), steps, step)

    def in_any_order(self, expected: Sequence[Node], actual: Sequence[Node], step: str) -> Decision:
        """Return True if each element of one has a partner in the other, in any order."""
        if len(expected) != len(actual):
            return Decision(False, step)
        # Matching is quadratic in the elements.
        if len(expected) > MAX_ITEMS or len(expected) * len(actual) > _MAX_PAIRS:
            raise TooHard("elements")
        rest, steps = list(actual), []
        for item in expected:
            decisions = (self.same(item, other) for other in rest)
            place, decision = next(
                ((n, each) for n, each in enumerate(decisions) if each.equal), (-1, None)
            )
            if decision is None:
                return Decision(False, step)
            steps.append(decision.step)
            # Each partner once: (1, 1, 2) is not (1, 2, 2).
            del rest[place]
        return _all(True, steps, step)


def _all(equal: bool, steps: Sequence[str], step: str) -> Decision:
    return Decision(equal, next((name for name in steps if name in INEXACT), step))


Rule = Callable[[Comparer, Node, Node], Decision | None]


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
