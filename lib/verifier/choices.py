"""Choices, quantifiers and cases."""

import itertools
import re
from collections.abc import Sequence

from lib.verifier.comparer import Comparer, either
from lib.verifier.evaluate import exact_value
from lib.verifier.identity import same_expression
from lib.verifier.problem import is_given, option_value, options
from lib.verifier.regions import domain_of, is_region
from lib.verifier.relations import value_of
from lib.verifier.rules import Decision
from lib.verifier.sets import real_set, same_set
from lib.verifier.tree import (
    REALS,
    Node,
    difference,
    free_symbols,
    negated,
    nodes,
    number,
    spelled,
    substituted,
    symbol,
)


def compare_choice(comparer: Comparer, reference: Node, answer: Node) -> Decision | None:
    """Compare letters of multiple choice; a value after the letter is not another answer."""
    # '' where it is no letter of a choice.
    # A bare letter past E is rather a variable.
    known = "ABCDEFGHIJ" if either("choice", reference, answer) else "ABCDE"
    letters = [_letter(node, known) for node in (reference, answer)]
    if not (either("choice", reference, answer) or (all(letters) and reference != answer)):
        return None
    if all(letters):
        is_same = letters[0] == letters[1]
        texts = [value for node in (reference, answer) for value in node.args]
        listed = dict(options(comparer.problem)) if texts else {}
        # (B) followed by words that no option has.
        if any(text.kind == "phrase" for text in texts) and letters[0] not in listed:
            return Decision(False, "choice")
        if is_same and letters[0] in listed:
            option = option_value(listed[letters[0]])
            is_same = all(option is None or comparer.equal(option, text) for text in texts)
        return Decision(is_same, "choice")
    marked, bare = (reference, answer) if reference.kind == "choice" else (answer, reference)
    # "(B) 12" for 12: the value counts.
    if marked.args and marked is answer:
        return comparer.same(bare, marked.args[0]).via("choice")
    return Decision(False, "choice")


def _letter(node: Node, known: str) -> str:
    is_letter = node.kind == "symbol" and node.name.upper() in known and len(node.name) == 1
    return node.name.upper() if node.kind == "choice" or is_letter else ""


def compare_quantified(comparer: Comparer, reference: Node, answer: Node) -> Decision | None:
    """Compare statements for all values of a letter; the letter's name is bound."""
    if not either("quantified", reference, answer):
        return None
    if is_region(reference) or is_region(answer):
        one_set, other_set = real_set(reference), real_set(answer)
        if one_set and other_set:
            return Decision(same_set(one_set, other_set), "region")
    if reference.kind != answer.kind:
        bound, bare = (reference, answer) if reference.kind == "quantified" else (answer, reference)
        statement, membership = bound.args
        if is_region(statement) and membership.args[1] != REALS:
            return Decision(False, "quantifier")
        # Only a quantifier over a whole set of numbers may go unsaid.
        if membership.name != "in" or not _WHOLE.fullmatch(membership.args[1].name):
            return Decision(False, "quantifier")
        pair = (statement, bare) if bound is reference else (bare, statement)
        names = _renaming(*pair, free_symbols(membership.args[0]), comparer.problem)
        pair = (pair[0], substituted(pair[1], names))
        return comparer.same(*pair).via("quantifier")
    (one, over), (two, other) = reference.args, answer.args
    letters = [
        [part.name for part in nodes(side.args[0]) if part.kind == "symbol"]
        for side in (over, other)
    ]
    domains = [domain_of(side.args[1]) for side in (over, other)]
    if len(letters[0]) != len(letters[1]) or over.name != other.name:
        return Decision(False, "quantifier")
    if domains[0] != domains[1] and ("any" not in domains or {"some", "no"} & {*domains}):
        return Decision(False, "quantifier")
    # Few letters: every way to rename them.
    for order in itertools.permutations(letters[1]):
        renamed = substituted(
            two, {old: symbol(new) for old, new in zip(order, letters[0], strict=True)}
        )
        if (set(letters[0]) - set(letters[1])) & free_symbols(two):
            continue
        decision = comparer.same(one, renamed)
        if decision.equal or _same_progression(one, renamed, letters[0], domains[0]):
            return (
                Decision(True, "quantifier") if not decision.equal else decision.via("quantifier")
            )
    return Decision(False, "quantifier")


_WHOLE = re.compile(r"any|bb:[RZQNC](?:[_^](?:[-+*0]|>0|<0|ge0))*")
"""Sets of numbers that a quantifier may be over and yet go unsaid."""


def _renaming(one: Node, two: Node, bound: frozenset[str], problem: str) -> dict[str, Node]:
    """Return the bound letter's name on the other side, where each side has one letter of its
    own.
    """
    left, right = (free_symbols(node) for node in (one, two))
    mine, theirs = left - right, right - left
    if len(mine) == len(theirs) == 1 and (mine | theirs) & bound:
        old, new = *theirs, *mine
        return {} if is_given(old, problem) or is_given(new, problem) else {old: symbol(new)}
    return {}


def _same_progression(one: Node, two: Node, letters: Sequence[str], domain: str) -> bool:
    r"""Return True for `2k+1` and `2n-1` over the integers: steps alike up to sign, values a
    step apart.
    """
    if domain != "bb:Z" or len(letters) != 1:
        return False
    one, two = value_of(one), value_of(two)
    # Three values show whether the step is constant.
    at = [[substituted(node, {letters[0]: number(k)}) for k in (0, 1, 2)] for node in (one, two)]
    steps = [difference(values[1], values[0]) for values in at]
    if any(
        not same_expression(difference(v[2], v[1]), s).equal for v, s in zip(at, steps, strict=True)
    ):
        return False
    if not any(same_expression(steps[0], s).equal for s in (steps[1], negated(steps[1]))):
        return False
    # An integer number of steps apart: the same set over the integers.
    ratio = exact_value(Node("quotient", (difference(at[0][0], at[1][0]), steps[0])))
    linear = [
        Node("sum", (v[0], Node("product", (symbol(letters[0]), s))))
        for v, s in zip(at, steps, strict=True)
    ]
    are_linear = all(same_expression(n, m).equal for n, m in zip((one, two), linear, strict=True))
    return ratio is not None and ratio.denominator == 1 and are_linear


def compare_cases(comparer: Comparer, reference: Node, answer: Node) -> Decision | None:
    """Compare values with their conditions, in any order; or a system of equations."""
    if not either("cases", reference, answer):
        return None
    one, two = (_system(value_of(node)) for node in (reference, answer))
    if (one.kind, two.kind) != ("cases", "cases"):
        return (
            comparer.same(one, two)
            if "cases" not in (one.kind, two.kind)
            else Decision(False, "cases")
        )
    if len(one.args) != len(two.args):
        return Decision(False, "cases")
    rest = list(two.args)
    for row in one.args:
        match = next(
            (other for other in rest if _same_case(comparer, row, other, len(one.args))), None
        )
        if match is None:
            return Decision(False, "cases")
        # Each case once.
        rest.remove(match)
    return Decision(True, "cases")


def _same_case(comparer: Comparer, one: Node, two: Node, count: int) -> bool:
    if len(one.args) != 2 or len(two.args) != 2 or not comparer.equal(one.args[0], two.args[0]):
        return False
    conditions = [_condition(row.args[1]) for row in (one, two)]
    if "otherwise" in conditions and count == 2:
        # Of two cases the other condition settles it.
        return True
    # As sets of numbers, x > 1 and X > 1 are one.
    same_letters = free_symbols(one.args[1]) == free_symbols(two.args[1])
    return conditions[0] == conditions[1] or (
        same_letters and comparer.equal(one.args[1], two.args[1])
    )


def _condition(node: Node) -> str:
    """Return a condition in words, without "if" and "is"."""
    text = node.name.lower() if node.kind == "phrase" else spelled(node)
    if node.kind == "unit" and node.args[0].kind == "symbol":
        text = f"{node.args[0].name} {node.name.lower()}"
    words = [word for word in text.split() if word not in ("if", "is", "for", "when", ",", "an")]
    return "otherwise" if words in (["otherwise"], ["else"]) else " ".join(words)


def _system(node: Node) -> Node:
    """Return cases without conditions, each an equation, as a list of them."""
    if node.kind == "cases" and all(len(row.args) == 1 for row in node.args):
        return Node("list", tuple(row.args[0] for row in node.args), ",")
    return node
