"""Compare two trees: kinds are kept apart, or converted by a listed rule."""

from lib.verifier.choices import compare_cases, compare_choice, compare_quantified
from lib.verifier.comparer import Comparer
from lib.verifier.lists import compare_collection
from lib.verifier.quantities import (
    compare_angle,
    compare_base,
    compare_congruence,
    compare_percent,
    compare_quantity,
    compare_ratio,
    compare_scalar,
)
from lib.verifier.regions import compare_region
from lib.verifier.relations import compare_relation
from lib.verifier.rules import Decision
from lib.verifier.tree import Node
from lib.verifier.vectors import compare_determinant, compare_vector, compare_words

RULES = (
    compare_choice,
    compare_cases,
    compare_quantified,
    compare_region,
    compare_relation,
    compare_collection,
    compare_words,
    compare_determinant,
    compare_vector,
    compare_quantity,
    compare_angle,
    compare_percent,
    compare_base,
    compare_ratio,
    compare_congruence,
    compare_scalar,
)
"""In order: the first that knows the kinds decides."""


def same(reference: Node, answer: Node, problem: str = "") -> Decision:
    """Return True if `answer` is as good as `reference`, and the step that decided.

    Raises:
        Undecided, TooHard: see `lib.verifier.identity.same_expression`.
    """
    return Comparer(problem, RULES).same(reference, answer)
