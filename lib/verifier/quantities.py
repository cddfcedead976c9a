"""Comparison of quantities: units, degrees, percent, bases, ratios, residues, roundings."""

import itertools

from lib.verifier.comparer import Comparer, either
from lib.verifier.identity import same_expression
from lib.verifier.rounding import is_rounding
from lib.verifier.rules import Decision
from lib.verifier.tree import (
    Node,
    Undecided,
    call,
    free_symbols,
    nodes,
    number,
    symbol,
)
from lib.verifier.units import asked_words, may_be_added, parse_unit
from lib.verifier.vectors import exact_or_none
from lib.verifier.words import HEDGES


def compare_quantity(comparer: Comparer, reference: Node, answer: Node) -> Decision | None:
    """Compare quantities with their units, converted if both are known."""
    one, two = reference, answer
    if not {one.kind, two.kind} & {"unit", "amount"}:
        return None
    expected, actual = _in_base(one), _in_base(two)
    if expected and actual:
        # Dimensions: metres are never seconds.
        is_same = expected[1] == actual[1]
        return (
            comparer.same(expected[0], actual[0]).via("unit")
            if is_same
            else Decision(False, "unit")
        )
    if one.kind == two.kind == "unit":
        # Units that no table knows: the words must agree.
        is_same = _singular(one.name) == _singular(two.name)
        return (
            comparer.same(one.args[0], two.args[0]).via("unit")
            if is_same
            else Decision(False, "unit")
        )
    if "unit" not in (one.kind, two.kind) or {one.kind, two.kind} & {"degree", "percent", "amount"}:
        return Decision(False, "unit")
    unit = one if one.kind == "unit" else two
    # Asymmetric: an answer may leave a unit out more freely than add one.
    may_go = _may_leave(unit.name) if unit is one else _may_add(unit.name, comparer.problem)
    inner, outer = (node.args[0] if node.kind == "unit" else node for node in (one, two))
    # After a formula letters are rather factors.
    may_go &= unit is one or bool(comparer.problem) or not free_symbols(outer)
    return comparer.same(inner, outer).via("unit") if may_go else Decision(False, "unit")


def _in_base(node: Node) -> tuple[Node, tuple[tuple[str, int], ...]] | None:
    """Return the value in base units, and their dimension."""
    if node.kind == "amount":
        parts = [_in_base(part) for part in node.args]
        known = [part for part in parts if part]
        factors = [parse_unit(part.name) for part in node.args]
        # 5 ft 3 in, never 3 in 5 ft.
        is_falling = all(a and b and a.factor > b.factor for a, b in itertools.pairwise(factors))
        if len(known) < len(parts) or len({part[1] for part in known}) > 1 or not is_falling:
            return None
        return Node("sum", tuple(part[0] for part in known)), known[0][1]
    unit = parse_unit(node.name) if node.kind == "unit" else None
    return (Node("product", (node.args[0], number(unit.factor))), unit.dimension) if unit else None


def _singular(unit: str) -> str:
    words = unit.lower().split() if len(unit) > 3 else unit.split()
    return " ".join(word.removesuffix("s") if len(word) > 3 else word for word in words)


def _may_leave(unit: str) -> bool:
    """Return True if an answer may leave out what a reference counts or measures."""
    # "10 of each" counts; "at least 10" does not say 10.
    hedges = HEDGES - {"any", "all", "each", "every"}
    return parse_unit(unit) is not None or not hedges & set(unit.lower().split())


def _may_add(unit: str, problem: str) -> bool:
    """Return True if an answer may say what a reference leaves out: what the problem asks for."""
    known = parse_unit(unit)
    if known:
        return may_be_added(known, problem)
    words = unit.lower()
    if HEDGES & set(words.split()):
        return False
    phrases = asked_words(problem)
    stem = _singular(words)
    is_each = any(phrase.startswith("of each") for phrase in phrases) and words in problem.lower()
    return is_each or any(_singular(phrase).startswith(stem) for phrase in phrases)


def compare_angle(comparer: Comparer, reference: Node, answer: Node) -> Decision | None:
    """Compare degrees with degrees or bare numbers; with an expression in π also in radians."""
    if not either("degree", reference, answer):
        return None
    # The numbers without the mark.
    values = [node.args[0] if node.kind == "degree" else node for node in (reference, answer)]
    if reference.kind == answer.kind:
        return comparer.same(*values).via("angle")
    bare = answer if reference.kind == "degree" else reference
    inside = values[0] if reference.kind == "degree" else values[1]
    if any(part == symbol("pi") for part in nodes(bare)):
        return same_expression(reference, answer).via("angle")
    if any(part == symbol("pi") for part in nodes(inside)):
        return Decision(False, "angle")
    is_asked = reference.kind == "degree" or not comparer.problem or _names_angles(comparer.problem)
    return comparer.same(*values).via("angle") if is_asked else Decision(False, "angle")


def _names_angles(problem: str) -> bool:
    return any(word in problem.lower() for word in ("degree", "angle", "circ", "°"))


def compare_percent(comparer: Comparer, reference: Node, answer: Node) -> Decision | None:
    """Compare `10 %` as 0.1; the sign may go unsaid if the problem names percent."""
    if reference.kind == answer.kind == "percent":
        return comparer.same(reference.args[0], answer.args[0]).via("percent")
    if not either("percent", reference, answer):
        return None
    marked, bare = (reference, answer) if reference.kind == "percent" else (answer, reference)
    is_bare = not any(part.kind == "percent" for part in nodes(bare))
    if is_bare and _asks_for_percent(comparer.problem):
        decision = comparer.same(marked.args[0], bare)
        if decision.equal:
            return decision.via("percent")
    pair = [hundredth(node) for node in (reference, answer)]
    return comparer.same(*pair).via("percent")


def hundredth(node: Node) -> Node:
    """Return a percentage as the number that it is; anything else as it is."""
    if node.kind != "percent":
        return node
    inside = node.args[0]
    if inside.value is None:
        return Node("quotient", (inside, number(100)))
    # The literal keeps its digits: 12.5 % is 0.125, a decimal of three places.
    places = len(inside.name.partition(".")[2]) + 2
    return number(inside.value / 100, f"{float(inside.value / 100):.{min(places, 15)}f}")


def _asks_for_percent(problem: str) -> bool:
    return "percent" in problem.lower() or "%" in problem


def compare_base(comparer: Comparer, reference: Node, answer: Node) -> Decision | None:
    """Compare digits in the same base; base ten may go unsaid."""
    if not either("base", reference, answer):
        return None
    digits = [
        # Leading zeros say nothing.
        (node.name.lstrip("0"), node.value if node.kind == "base" else 10)
        for node in (reference, answer)
        if node.kind == "base" or (node.kind == "number" and node.name.isdecimal())
    ]
    return Decision(len(digits) == 2 and digits[0] == digits[1], "base")


def compare_ratio(comparer: Comparer, reference: Node, answer: Node) -> Decision | None:
    """Compare ratios: proportional terms, zeros in the same places; of two terms, also the
    fraction.
    """
    if not either("ratio", reference, answer):
        return None
    expected, actual = (
        list(node.args) if node.kind == "ratio" else [node] for node in (reference, answer)
    )
    # 3:4 against 3/4
    if {len(expected), len(actual)} == {1, 2}:
        expected, actual = ([*terms, number(1)][:2] for terms in (expected, actual))
    if len(expected) != len(actual) or len(expected) < 2:
        return Decision(False, "ratio")
    # Crosswise products cannot tell 0:0 from anything, so zeros must stand in the same places.
    zeros = [[exact_or_none(term) == 0 for term in terms] for terms in (expected, actual)]
    if zeros[0] != zeros[1] or all(zeros[0]):
        return Decision(False, "ratio")
    # Divided by the first term that is not 0.
    first = zeros[0].index(False)
    quotients = (
        [Node("quotient", (term, terms[first])) for term in terms] for terms in (expected, actual)
    )
    return comparer.all_same(zip(*quotients, strict=True), "ratio")


def compare_congruence(comparer: Comparer, reference: Node, answer: Node) -> Decision | None:
    r"""Compare `x \equiv 10 \pmod 7` as 3."""
    if not all(node.kind == "call" and node.name == "congruent" for node in (reference, answer)):
        return None
    reduced = [
        (
            *node.args[:-2],
            call("mod", *node.args[-2:]) if not free_symbols(node.args[-2]) else node.args[-2],
            node.args[-1],
        )
        for node in (reference, answer)
    ]
    return comparer.all_same(zip(*reduced, strict=True), "congruence")


def compare_scalar(comparer: Comparer, reference: Node, answer: Node) -> Decision:
    """Compare as expressions; else one side may round the other."""
    try:
        decision = same_expression(reference, answer)
    except Undecided:
        if not is_rounding(reference, answer, comparer.problem):
            raise
        return Decision(True, "rounding")
    if not decision.equal and is_rounding(reference, answer, comparer.problem):
        return Decision(True, "rounding")
    return decision
