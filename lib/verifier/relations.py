"""Compare the values that two answers state: in equations, lists and sets, value by value.

Also compare statements about all values of a letter, values by cases, words, times and dates.
"""

import itertools
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from lib.verifier.atoms import GREEK
from lib.verifier.evaluate import real_value
from lib.verifier.quantities import compare_quantity
from lib.verifier.rules import Comparer, Verdict, either, is_vain
from lib.verifier.sets import domain_of, is_region, same_constraint
from lib.verifier.tree import (
    FUNCTIONS,
    REALS,
    Node,
    free_symbols,
    is_name,
    negated,
    nodes,
    spelled,
    substituted,
    symbol,
)
from lib.verifier.words import HEDGES, may_label


class Stated(NamedTuple):
    """The values that an answer states.

    Attributes:
        values: the values, in the order of the answer.
        names: one for each value: '' if it has no name, "x = y" if it has both names.
        joint: "and", "or", "," (which may mean either of them), or "[]" (the order counts).
        is_set: whether repeated elements count once.
    """

    values: tuple[Node, ...]
    names: tuple[str, ...]
    joint: str = ","
    is_set: bool = False


def stated(comparer: Comparer, node: Node) -> Stated | None:
    """Return the values that `node` states, or None if it is a relation that states none.

    Any node but a relation, a list or a set states itself; with ±, it states two values.
    """
    match node:
        case Node("relation"):
            return _equation(comparer, node)
        case Node("list", items, joint):
            return _listed(comparer, items, joint)
        case Node("set", items):
            # In a set, ±a is two elements.
            values = tuple(value for item in items for value in signs(item))
            return Stated(values, ("",) * len(values), is_set=True)
    # `[1, 2]` is an interval; one or more than two elements in square brackets are a list.
    is_list = node.kind == "tuple" and node.name == "[]" and len(node.args) != 2
    values = node.args if is_list else tuple(signs(node))
    return Stated(values, ("",) * len(values), "[]" if is_list else ",")


def _equation(comparer: Comparer, node: Node) -> Stated | None:
    """Return the value and the name that a chain of equations states.

    `x = 2 + 3 = 5` states that x is 2 + 3. None if the relation is no equation, or if its values
    are not equal: `x = 7 = 8`.
    """
    # A chain a = b ≈ c has n parts and n − 1 operators.
    operators, parts = node.name.split(" "), node.args
    # Three relations state a value as "=" does: X ~ N(0, 1), x ↦ f(x), and x ∈ {1, 2}.
    is_stated = operators in (["sim"], ["mapsto"]) or (node.name, parts[-1].kind) == ("in", "set")
    if is_stated and is_name(parts[0]):
        operators = ["="]
    if not {*operators} <= {"=", "~"}:
        return None
    if is_name(parts[-1]) and not (is_name(parts[0]) or free_symbols(parts[0]) or "~" in operators):
        # 5 = x is x = 5.
        parts = parts[::-1]
    # The first `count` parts are names, the others are values; the last part is always a value.
    count = next((n for n, part in enumerate(parts[:-1]) if not is_name(part)), len(parts) - 1)
    # e and i are constants elsewhere, but names in `e = 1/2` and `i = 2`.
    if parts[0] in (symbol("e"), symbol("i")) and not free_symbols(parts[-1]):
        count = max(count, 1)
    values, links = parts[count:], operators[count:]
    # The values before the first ≈ are exact.
    exact = links.index("~") + 1 if "~" in links else len(values)
    first, *others = values[:exact]
    if (not count and is_vain(node) and first.kind == "number") or not all(
        comparer.equal(first, other) for other in others
    ):
        # `x = 7 = 8` and `0 = 0` state nothing.
        return None
    if not _approximates(first, values[exact:]):
        return None
    # The x in x ↦ x² is no name of the function.
    names = parts[:count] if node.name != "mapsto" else ()
    name = " = ".join(dict.fromkeys(map(spelled, names)))
    if parts[0].kind == first.kind == "tuple" and len(parts[0].args) == len(first.args):
        # (x, y) = (1, 2) states two values.
        return Stated(first.args, tuple(map(spelled, parts[0].args)))
    inner = stated(comparer, first) or Stated((first,), ("",))
    return inner._replace(names=(name,) * len(inner.values))


def _approximates(value: Node, approximate: tuple[Node, ...]) -> bool:
    """Return True if the decimal after ≈ is less than one unit of its last place off `value`.

    True also if nothing follows ≈; False if more than one part does, or no decimal.
    """
    if not approximate:
        return True
    exact, last = real_value(value), approximate[-1]
    if exact is None or last.value is None or "." not in last.name or len(approximate) > 1:
        return False
    return abs(exact - last.value) < Fraction(1, 10 ** len(last.name.partition(".")[2]))


def _listed(comparer: Comparer, items: tuple[Node, ...], joint: str) -> Stated:
    """Return the values of a list whose items are values or equations.

    If an item is a relation that states no value, or only some items have names, the items
    themselves are the values, without names.
    """
    plain = Stated(items, ("",) * len(items), joint)
    values: list[Node] = []
    names: list[str] = []
    for item in items:
        one = _equation(comparer, item) if item.kind == "relation" else None
        if item.kind == "relation" and one is None:
            return plain
        if one and item.args[0].kind == "tuple":
            # In a list, (x, y) = (1, 2) is one value: one of several pairs.
            one = Stated((item.args[-1],), (spelled(item.args[0]),))
        inner = [*signs(item)] if one is None else one.values
        values += inner
        names += [""] * len(inner) if one is None else one.names
    return plain if "" in names and any(names) else Stated(tuple(values), tuple(names), joint)


def compare_stated(comparer: Comparer, reference: Node, answer: Node) -> Verdict | None:
    """Compare lists, sets and named values by what they state, and other relations as constraints.

    Return None if each side is one bare value.
    """
    # `5 ft, 3 in` is the amount `5 ft 3 in`.
    if "amount" in (reference.kind, answer.kind) and either("list", reference, answer):
        amounts = (node._replace(kind="amount") for node in (reference, answer))
        return compare_quantity(comparer, *amounts)
    sides = (reference, answer)
    if all(node.kind == "relation" and node.args[0].kind == "call" for node in sides):
        # f(x) = x² is f(t) = t²: both get the same letter.
        reference, answer = _bound(reference), _bound(answer)
    one, two = (stated(comparer, node) for node in (reference, answer))
    if one and two:
        # Both sides are bare values, which a later rule compares.
        if (one.values, two.values) == ((reference,), (answer,)):
            return None
        decision = _same_stated(comparer, one, two)
        if decision.equal or not (reference.kind == answer.kind == "relation"):
            return decision
    if reference.kind == answer.kind == "relation" and not is_vain(answer):
        return Verdict(same_constraint(comparer, reference, answer), "constraint")
    return Verdict(False, "name")


def _same_stated(comparer: Comparer, one: Stated, two: Stated) -> Verdict:
    """Compare the values of a reference, `one`, with those of an answer, by name or in any order.

    If only one side has names, the other side's values must come in the order of these names.
    """
    # `1 or 2` is one value, `1 and 2` is both.
    if {one.joint, two.joint} == {"and", "or"}:
        return Verdict(False, "list")
    if one.joint == two.joint == "[]":
        return comparer.in_order(one.values, two.values, "list")
    one, two = _spread(one, two), _spread(two, one)
    if len(one.values) == len(two.values) == 1:
        # A set of one element is not its element.
        is_alike = one.is_set == two.is_set
        return _same_value(comparer, one, two) if is_alike else Verdict(False, "list")
    if any(one.names) and any(two.names):
        return comparer.in_any_order(_named(one), _named(two), "list")
    named, other = (one, two) if any(one.names) else (two, one)
    if not all(names_agree(name, "", comparer.problem) for name in named.names):
        return Verdict(False, "name")
    values = other.values
    is_tuple = len(values) == 1 and values[0].kind == "tuple"
    # Any order: one name for all values, a set, or an answer's names that the reference lacks.
    if len({*named.names}) == 1 or other.is_set or (named is two and not is_tuple):
        step = "name" if any(named.names) else "list"
        return comparer.in_any_order(_distinct(one), _distinct(two), step)
    # Without names, the values of `y = 2, x = 1` may be listed as 2, 1 (as the reference writes
    # them) or as 1, 2 (names in the alphabet's order); a tuple is always (1, 2).
    fields = dict(zip(named.names, named.values, strict=True))
    orders = [tuple(fields[name] for name in sorted(fields))]
    if is_tuple:
        values = values[0].args
    else:
        orders.append(named.values)
    pairs = ((order, values) if named is one else (values, order) for order in orders)
    # A verdict that is equal is the larger tuple.
    return max(comparer.in_order(*pair, "name") for pair in pairs)


def _same_value(comparer: Comparer, one: Stated, two: Stated) -> Verdict:
    """Compare two sides of one value each; different names make them unequal."""
    if not names_agree(one.names[0], two.names[0], comparer.problem):
        return Verdict(False, "name")
    decision = comparer.same(one.values[0], two.values[0])
    return decision if one.names == two.names else decision.via("name")


def _spread(side: Stated, other: Stated) -> Stated:
    """Return `x = y = 1` as x: 1 and y: 1, if the other side has several values or a tuple."""
    is_one = len(other.values) == 1 and other.values[0].kind != "tuple"
    names = () if is_one or len(side.values) != 1 else tuple(side.names[0].split(" = "))
    return side._replace(names=names, values=side.values * len(names)) if names[1:] else side


def _named(side: Stated) -> tuple[Node, ...]:
    """Return each value with its name as an equation."""
    pairs = zip(side.names, side.values, strict=True)
    return tuple(Node("relation", (symbol(name), value), "=") for name, value in pairs)


def _distinct(side: Stated) -> tuple[Node, ...]:
    """Return the values; of a set, without repetitions."""
    return tuple(dict.fromkeys(side.values)) if side.is_set else side.values


def names_agree(one: str, two: str, problem: str) -> bool:
    """Return True if two spelled names, '' for none, may name the same thing."""
    if one == two:
        return True
    if one and two:
        # `y` may be f(x), and `x = y` may be `y = x`.
        is_graph = {one[:2], two[:2]} == {"f(", "y"}
        return is_graph or {*one.split(" = ")} == {*two.split(" = ")}
    # Only one side has a name. A variable may go unsaid; a label (a word of three letters or more
    # that is not Greek) only if the problem allows it.
    name = one or two
    is_label = name.startswith("label:") or re.fullmatch(r"[^\W\d_]{3,}", name)
    return not is_label or name in GREEK or may_label(name.removeprefix("label:"), problem)


_FUNCTION = re.compile(r"(?:[A-Za-z]|[pP][hs]i)(?:'*|\^-1|_\w+)")


def _bound(node: Node) -> Node:
    """Return `f(x) = x^2` with the letters in the brackets of f renamed to their places.

    Anything but the definition of a function is returned as it is.
    """
    head, value = node.args[0], node.args[-1]
    letters = [part.name for part in head.args if re.fullmatch("[a-z]", part.name)]
    is_definition = node.name == "=" and _FUNCTION.fullmatch(head.name) and is_name(head)
    # An argument is no letter: `f(2x) = …`.
    if not is_definition or len({*letters}) < len(free_symbols(head)):
        return node
    # f(x) = g(x) is an equation for two unknown functions.
    if value.kind == "call" and value.name not in FUNCTIONS:
        return node
    return substituted(
        node, {name: symbol(f"argument {place}") for place, name in enumerate(letters)}
    )


def signs(node: Node) -> Iterator[Node]:
    """Yield `node` with + for every ± (and − for ∓), then with − for ±; without both, `node`."""
    has_both = any(part.kind == "plusminus" for part in nodes(node))
    for upper in (True, False) if has_both else (True,):
        yield _signed(node, upper)


def _signed(node: Node, upper: bool) -> Node:
    """Return `node` with the upper sign of every ± and ∓, or with the lower one."""
    parts = tuple(_signed(part, upper) for part in node.args)
    if node.kind != "plusminus":
        return node._replace(args=parts)
    # The upper sign of ± is plus, that of ∓ is minus.
    last = parts[-1] if upper == (node.name == "+-") else negated(parts[-1])
    return last if len(parts) == 1 else Node("sum", (parts[0], last))


def compare_quantified(comparer: Comparer, reference: Node, answer: Node) -> Verdict | None:
    """Compare statements about all values of a letter, such as `2n for all n`.

    The letter is bound: another letter in its place states the same.
    """
    if reference.kind != answer.kind:
        sides = [reference, answer]
        place = sides.index(answer if answer.kind == "quantified" else reference)
        statement, membership = sides[place].args
        domain = membership.args[1]
        # Only a quantifier over a whole set of numbers may go unsaid.
        is_whole = membership.name == "in" and _WHOLE.fullmatch(domain.name)
        if not is_whole or (is_region(statement) and domain != REALS):
            return Verdict(False, "quantifier")
        sides[place] = statement
        return comparer.same(*sides).via("quantifier")
    (one, over), (two, other) = reference.args, answer.args
    letters, others = (
        [part.name for part in nodes(side.args[0]) if part.kind == "symbol"]
        for side in (over, other)
    )
    domains = [domain_of(side.args[1]) for side in (over, other)]
    is_open = "any" in domains and not {"some", "no"} & {*domains}
    is_alike = over.name == other.name and (domains[0] == domains[1] or is_open)
    if len(letters) != len(others) or not is_alike or ({*letters} - {*others}) & free_symbols(two):
        return Verdict(False, "quantifier")
    # There are few letters, so that every way to rename them is tried.
    for order in itertools.permutations(others):
        renamed = substituted(two, dict(zip(order, map(symbol, letters), strict=True)))
        decision = comparer.same(one, renamed)
        if decision.equal:
            return decision.via("quantifier")
    return Verdict(False, "quantifier")


_WHOLE = re.compile(r"any|bb:[RZQNC](?:[_^](?:[-+*0]|>0|<0|ge0))*")
"""Names of whole sets of numbers: a quantifier over one of them may go unsaid."""


def compare_cases(comparer: Comparer, reference: Node, answer: Node) -> Verdict | None:
    """Compare definitions by cases, value and condition of each case, in any order."""
    if reference.kind != answer.kind or len(reference.args) != len(answer.args):
        return None if either("relation", reference, answer) else Verdict(False, "cases")
    rest = list(answer.args)
    for row in reference.args:
        match = next((other for other in rest if _same_case(comparer, row, other, reference)), None)
        if match is None:
            return Verdict(False, "cases")
        # Each case of the answer matches once.
        rest.remove(match)
    return Verdict(True, "cases")


def _same_case(comparer: Comparer, one: Node, two: Node, cases: Node) -> bool:
    """Return True if one case of the reference `cases` has the value and condition of `two`."""
    if len(one.args) != 2 or len(two.args) != 2 or not comparer.equal(one.args[0], two.args[0]):
        return False
    (_, left), (_, right) = one.args, two.args
    conditions = _condition(left), _condition(right)
    # "otherwise" needs no comparison if there are two cases: the other case's condition settles it.
    if conditions[0] == conditions[1] or ("otherwise" in conditions and len(cases.args) == 2):
        return True
    # Sets of numbers are compared without the name of their variable: x > 1 would equal X > 1.
    return free_symbols(left) == free_symbols(right) and comparer.equal(left, right)


def _condition(node: Node) -> str:
    """Return the words of a condition without "if", "is" and the like; "else" as "otherwise"."""
    text = node.name.lower() if node.kind == "phrase" else spelled(node)
    # "n even" is parsed as n of a unit "even".
    if node.kind == "unit" and node.args[0].kind == "symbol":
        text = f"{node.args[0].name} {node.name.lower()}"
    words = [word for word in text.split() if word not in ("if", "is", "for", "when", ",", "an")]
    return "otherwise" if words in (["otherwise"], ["else"]) else " ".join(words)


def compare_words(comparer: Comparer, reference: Node, answer: Node) -> Verdict | None:
    """Compare words, times and dates, which are equal if they are spelled alike.

    One side may add the noun that the problem asks for: `obtuse` is `obtuse triangle`.
    """
    if either("time", reference, answer):
        one, two = _face(reference), _face(answer)
        # 4:30 may be 4:30 p.m.
        is_same = one and two and one[0] == two[0] and (one[1] == two[1] or not (one[1] and two[1]))
        return Verdict(bool(is_same), "time")
    if reference.kind != answer.kind:
        return Verdict(False, "words")
    short, long = sorted((reference.name, answer.name), key=len)
    noun = long.removeprefix(f"{short} ")
    question = rf"\b(?:who|which|(?:type|kind|sort) of|is the) {re.escape(noun)}\b"
    is_noun = re.fullmatch(r"[a-z]{3,}", noun) and noun not in HEDGES
    is_asked = is_noun and re.search(question, comparer.problem.lower())
    return Verdict(short == long or bool(is_asked), "words")


def _face(node: Node) -> tuple[str, str] | None:
    """Return a time as ("4:30", "p"), with "a", "p" or "" for the half of the day; else None."""
    match node:
        case Node("time"):
            face, _, half = node.name.partition(" ")
            return face, half
        # 16:31 is parsed as a ratio.
        case Node("ratio", (Node(name=hours), Node(name=minutes))) if re.fullmatch(
            r"\d+:\d\d", f"{hours}:{minutes}"
        ):
            hour = int(hours)
            return (f"{hour - 12}:{minutes}", "p") if hour > 12 else (f"{hour}:{minutes}", "")
    return None
