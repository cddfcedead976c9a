"""Rules that compare the values of equations, lists and sets: `x = 1, y = 2` states 1 and 2.

Also rules for statements about all values of a letter, and for words.
Each `compare_*` is a rule of `reckon_verifier.equivalence.RULES`: it compares the trees of a
reference and an answer, and returns None to leave the pair to the next rule.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from reckon_verifier.atoms import GREEK
from reckon_verifier.evaluate import real_value
from reckon_verifier.identity import Fingerprint, salt_of, same_expression
from reckon_verifier.rules import MAX_MATCHED, Comparer, Verdict, is_vain
from reckon_verifier.sets import is_region, same_constraint
from reckon_verifier.tree import (
    FUNCTIONS,
    INFINITY,
    REALS,
    Node,
    TooHard,
    Undecided,
    difference,
    free_symbols,
    is_name,
    negated,
    nodes,
    number,
    spelled,
    substituted,
    symbol,
)
from reckon_verifier.words import HEDGES, may_label


class Stated(NamedTuple):
    """The values of an answer, with their names: `x = 1, y = 2` has (1, 2) and ("x", "y").

    Attributes:
        values: the values, in the order of the answer.
        names: one for each value: '' if it has no name, "x = y" for the value of `x = y = 1`.
        joint: the word between the values: "and", "or", or "," (either of them).
        is_set: whether repeated elements count once.
    """

    values: tuple[Node, ...]
    names: tuple[str, ...]
    joint: str = ","
    is_set: bool = False


def stated(comparer: Comparer, node: Node) -> Stated | None:
    """Return the values and names in `node`, or None for a relation without a value (`x + y = 1`).

    `x = 5` has the value 5 with the name x, and `1, 2` has two values. Any node except a relation,
    a list or a set is one value, or two if it contains ±.
    """
    match node:
        case Node("relation"):
            return _equation(comparer, node)
        case Node("list", items, joint):
            return _listed(comparer, items, joint)
        case Node("set", items):
            # In a set, ±a is two elements, and 1 and 2/2 are one.
            values: tuple[Node, ...] = ()
            elements = [value for item in items for value in signs(item)]
            # Beside dots each element counts: {0, 1, 0, 1, …} is not {0, 1, …}.
            if symbol("ldots") in elements:
                return Stated(tuple(elements), ("",) * len(elements), is_set=True)
            different = [*dict.fromkeys(elements)]
            if len(different) > MAX_MATCHED:
                raise TooHard("elements of a set")
            for value in different:
                # Not `comparer.equal`: 0.3333 may round 1/3, but is another element.
                if not any(same_expression(other, value).equal for other in values):
                    values += (value,)
            return Stated(values, ("",) * len(values), is_set=True)
    values = tuple(signs(node))
    return Stated(values, ("",) * len(values))


def _equation(comparer: Comparer, node: Node) -> Stated | None:
    """Return the value and the name in a chain of equations.

    `x = 2 + 3 = 5` has the value 2 + 3 with the name x, and `y = x = 1` the value 1 with the name
    "y = x". None if the relation is no equation, or if its values are not equal: `x = 7 = 8`.
    """
    operators, parts = node.name.split(" "), node.args
    if not {*operators} <= {"=", "~"}:
        return None
    if is_name(parts[-1]) and not (is_name(parts[0]) or free_symbols(parts[0]) or "~" in operators):
        # 5 = x is x = 5. Not with ≈, whose sides are not alike.
        parts = parts[::-1]
    # The first `num_names` parts are names, the others are values; the last part is always a value.
    num_names = next((n for n, part in enumerate(parts[:-1]) if not is_name(part)), len(parts) - 1)
    # e and i are constants elsewhere, but names in `e = 1/2` and `i = 2`.
    if parts[0] in (symbol("e"), symbol("i")) and not free_symbols(parts[-1]):
        num_names = max(num_names, 1)
    # x ≈ 5, with ≈ right after a name, states no exact value; y ≈ 2t does: a formula may be an
    # approximation.
    if "~" in operators[:num_names] and not free_symbols(parts[-1]):
        return None
    # links[n] is the operator between values[n] and values[n + 1].
    values, links = parts[num_names:], operators[num_names:]
    num_exact = links.index("~") + 1 if "~" in links else len(values)
    first, *others = values[:num_exact]
    # `0 = 0`, without a name or a symbol, states nothing.
    if not num_names and is_vain(node) and first.kind == "number":
        return None
    # Neither does `x = 7 = 8`; `x = π ≈ 3.14` states π.
    if not all(comparer.equal(first, other) for other in others):
        return None
    if not _approximates(first, values[num_exact:]):
        return None
    # `x = 2x` and `f(2x) = 4x` state no value of x or f(x).
    if parts[0].name in free_symbols(first) or (
        parts[0].kind == "call"
        and any(part.args and free_symbols(part) & free_symbols(first) for part in parts[0].args)
    ):
        return None
    name = " = ".join(dict.fromkeys(map(spelled, parts[:num_names])))
    if parts[0].kind == "tuple":
        # (x, y) = (1, 2) states two values, 1 with the name x and 2 with y; (x, y) = 5 states none.
        is_whole = first.kind == "tuple" and len(parts[0].args) == len(first.args)
        return Stated(first.args, tuple(map(spelled, parts[0].args))) if is_whole else None
    # `x = 1 ± 2` and `x = \{1, 2\}` state two values, both with the name x.
    inner = stated(comparer, first) or Stated((first,), ("",))
    return inner._replace(names=(name,) * len(inner.values))


def _approximates(value: Node, approximate: tuple[Node, ...]) -> bool:
    """Return True if the decimal after ≈ is within one unit of its last place of `value`.

    True for π ≈ 3.14, and if `approximate`, the parts after ≈, is empty. False for several parts,
    or one that is no decimal.
    """
    if not approximate:
        return True
    exact, last = real_value(value), approximate[-1]
    if exact is None or last.value is None or "." not in last.name or len(approximate) > 1:
        return False
    return abs(exact - last.value) < Fraction(1, 10 ** len(last.name.partition(".")[2]))


def _listed(comparer: Comparer, items: tuple[Node, ...], joint: str) -> Stated:
    r"""Return the values and names of a list of values or equations: `x = 1, y = 2`.

    If an item is a relation without a value, or only some items have names, the items themselves
    are the values, without names.

    Raises:
        Undecided: the signs of one value depend on those of another, `x = \pm 1, y = \mp 2`.
    """
    both = [{part.name for part in nodes(item) if part.kind == "plusminus"} for item in items]
    if sum(map(bool, both)) > 1 and any("-+" in names for names in both):
        raise Undecided("signs that go together")
    plain = Stated(items, ("",) * len(items), joint)
    values: list[Node] = []
    names: list[str] = []
    for item in items:
        equation = _equation(comparer, item) if item.kind == "relation" else None
        # (x, y) = (1, 2) stays whole: its values among others would no longer be one pair.
        if item.kind == "relation" and (equation is None or item.args[0].kind == "tuple"):
            return plain
        item_values = [*signs(item)] if equation is None else equation.values
        values += item_values
        names += [""] * len(item_values) if equation is None else equation.names
    # Only some have names: in `y = 1, 2` the 2 may be no value of y.
    return plain if "" in names and any(names) else Stated(tuple(values), tuple(names), joint)


def compare_stated(comparer: Comparer, reference: Node, answer: Node) -> Verdict | None:
    r"""Compare lists, sets and named values by their values, and other relations as constraints.

    `x = 5` equals `5`, `1, 2` equals `\{2, 1\}`, and `x + y = 1` equals `2x + 2y = 2`. Return None
    if each side is one bare value.
    """
    sides = (reference, answer)
    if all(node.kind == "relation" and node.args[0].kind == "call" for node in sides):
        # f(x) = x² is f(t) = t²: both become f(argument 0) = (argument 0)².
        reference, answer = _with_numbered_arguments(reference), _with_numbered_arguments(answer)
    expected, actual = (stated(comparer, node) for node in (reference, answer))
    if solves(comparer, reference, answer) or solves(comparer, answer, reference):
        return Verdict(True, "constraint")
    if expected and actual:
        # Both sides are one bare value, the node itself: a later rule compares them.
        if (expected.values, actual.values) == ((reference,), (answer,)):
            return None
        decision = _same_stated(comparer, expected, actual)
        # `x = y` and `y = x` have different names, but may still be the same constraint.
        if decision.equal or not (reference.kind == answer.kind == "relation"):
            return decision
    if reference.kind == answer.kind == "relation" and not is_vain(answer):
        return Verdict(same_constraint(comparer, reference, answer), "constraint")
    return Verdict(False, "name")


def solves(comparer: Comparer, equation: Node, solved: Node) -> bool:
    r"""Return True if `solved` is an equation solved for a letter: `xy = 6` for y = 6/x.

    The equation is ay + b = 0, and b or a has no letters: `xy = x` loses x = 0. A side by itself,
    `6/x`, is y if the problem asks for an equation or a function.
    """
    if equation.kind != "relation" or equation.name != "=" or len(equation.args) > 2:
        return False
    name, value = symbol("y"), solved
    if solved.kind == "relation" and solved.name == "=" and len(solved.args) == 2:
        name, value = solved.args if is_name(solved.args[0]) else solved.args[::-1]
    elif not _EQUATION.search(comparer.problem) or not free_symbols(solved):
        return False
    letters = free_symbols(equation)
    is_missing = name.kind == "symbol" and {name.name} == letters - free_symbols(value)
    if not is_missing or is_name(equation.args[0]) or letters <= free_symbols(value):
        return False
    left_over = difference(*equation.args)
    ring = Fingerprint(salt_of(equation, solved))

    def at(y: Node, others: Callable[[str], Node] = symbol) -> int:
        values = {letter: y if letter == name.name else others(letter) for letter in letters}
        return ring.of(substituted(left_over, values))

    zero, one, two = (at(number(n)) for n in (0, 1, 2))
    is_linear = (zero - 2 * one + two) % ring.modulus == 0 != one - zero
    slopes = [one - zero, at(number(1), _other) - at(number(0), _other)]
    is_certain = zero == at(number(0), _other) != 0 or (slopes[0] - slopes[1]) % ring.modulus == 0
    return is_linear and is_certain and at(value) == 0


_EQUATION = re.compile("(?i)equation|curve|line|graph|locus|function|in terms of|express")


def _other(letter: str) -> Node:
    return symbol(f"other {letter}")


def _same_stated(comparer: Comparer, expected: Stated, actual: Stated) -> Verdict:
    """Compare the values of a reference and an answer by name or in any order.

    Both sides with names: by name. Neither, or one name for all values: in any order. If only one
    side has different names, the values of the other come in its order: `x = 1, y = 2` equals
    `1, 2`, not `2, 1`. But a bare tuple, (1, 2), has the order of the letters: their order in the
    problem's tuple, "Find (x, y)", or else in the alphabet.
    """
    is_single = len(expected.values) == len(actual.values) == 1
    if {expected.joint, actual.joint} == {"and", "or"} or (
        # A set of one element is not its element.
        is_single and expected.is_set != actual.is_set
    ):
        return Verdict(False, "list")
    if is_single:
        return _same_value(comparer, expected, actual)
    # Equations have any order, unless two names are repeated: the values of `x = \pm 1, y = \pm 2`
    # may go together.
    if any(expected.names) and any(actual.names):
        sides = _named(expected), _named(actual)
        is_paired = sides[0][0].kind == "relation" and _repeats(expected.names)
        return (comparer.in_order if is_paired else comparer.in_any_order)(*sides, "list")
    is_answer = any(actual.names)
    named, other = (actual, expected) if is_answer else (expected, actual)
    names, values = {*named.names}, other.values
    agree = (
        names_agree(*(("", name) if is_answer else (name, "")), comparer.problem) for name in names
    )
    # `x = 1, y = 2` is not `y = 1, 2`: an equation among bare values has a name of its own.
    has_equation = any(named.names) and any(value.kind == "relation" for value in values)
    is_above = _is_above(named)
    if is_above is False or has_equation or not all(agree):
        return Verdict(False, "name")
    is_tuple = len(values) == 1 and values[0].kind == "tuple"
    # The larger of two bare values is the maximum.
    if len(names) <= 1 or (is_answer and not is_tuple and is_above):
        step = "name" if any(named.names) else "list"
        return comparer.in_any_order(expected.values, actual.values, step)
    # The order is not known for `x = 1, x = 2, y = 3`, nor if the bare values are a set.
    if len(names) < len(named.names) or other.is_set:
        return Verdict(False, "name")
    # The order of bare values is that of the names, of a tuple that of its letters; words, `Width:
    # 2, Length: 1`, keep theirs.
    order = named.values
    if is_tuple:
        fields = dict(zip(named.names, order, strict=True))
        if not any(name.startswith("label:") for name in fields):
            letters = _tuple_of(fields, comparer.problem) or sorted(fields)
            order = tuple(fields[name] for name in letters)
        values = values[0].args
    return comparer.in_order(*((values, order) if is_answer else (order, values)), "name")


def _is_above(side: Stated) -> bool | None:
    """Return True for `Maximum: 3, Minimum: 1`, False for `Maximum: 1, Minimum: 3`, else None.

    None for other names, for a set, and if a value is no real number.
    """
    values = dict(zip(side.names, side.values, strict=True))
    if side.is_set or {*values} != {"label:maximum", "label:minimum"}:
        return None
    largest, smallest = (real_value(values[f"label:{name}"]) for name in ("maximum", "minimum"))
    return None if largest is None or smallest is None else largest > smallest


def _tuple_of(names: Collection[str], problem: str) -> list[str] | None:
    """Return the names in the order of a tuple of the problem: b, a for "Find (b, a)"; or None."""
    tuples = (text.split(",") for text in re.findall(r"\(([^()]{1,60})\)", problem))
    orders = ([re.sub(r"[\s{}\\$]", "", name) for name in letters] for letters in tuples)
    return next((order for order in orders if sorted(order) == sorted(names)), None)


def _same_value(comparer: Comparer, expected: Stated, actual: Stated) -> Verdict:
    """Compare a reference and an answer of one value each: `x = 5` and `5`, not `y = 5`."""
    (name,), (other,) = expected.names, actual.names
    value, other_value = expected.values[0], actual.values[0]
    letter = _LETTER.fullmatch(name or other)
    # Without a problem, the function of `f(x) = 1` is no number, and `N = n` has two names.
    is_unclear = letter and name != other and not comparer.problem
    if not names_agree(name, other, comparer.problem) or (
        is_unclear and (is_name(value) or (letter and letter[1] and not free_symbols(value)))
    ):
        return Verdict(False, "name")
    decision = comparer.same(value, other_value)
    return decision if name == other else decision.via("name")


_LETTER = re.compile(r"[A-Za-z](\([a-df-hj-z]\))?")


def _repeats(names: Sequence[str]) -> bool:
    """Return True if two names are repeated, whose values may belong together."""
    return sum(count > 1 for count in Counter(names).values()) > 1


def _named(side: Stated) -> tuple[Node, ...]:
    """Return each value with its name as an equation node.

    Several solutions, `x = 1, y = 2, x = 3, y = 4`, are lists of equations, one for each. If two
    names are repeated otherwise, `y = \\pm 1, x = \\pm 2`, the equations are sorted by name.
    """
    pairs = zip(side.names, side.values, strict=True)
    equations = tuple(Node("relation", (symbol(name), value), "=") for name, value in pairs)
    names, size = {*side.names}, len({*side.names})
    if not _repeats(side.names):
        return equations
    starts = range(0, len(equations), size)
    if all({*side.names[n : n + size]} == names for n in starts):
        return tuple(Node("list", equations[n : n + size], ",") for n in starts)
    return tuple(sorted(equations, key=lambda equation: equation.args[0].name))


def names_agree(one: str, two: str, problem: str) -> bool:
    """Return True if two names, '' for none, may be of the same value: "x" and "", not "x" and "y".

    Args:
        one: the reference's name in the spelling of `spelled`: "x", "x = y", "label:maximum".
        two: the answer's name.
        problem: text of the problem, '' if it is not known.
    """
    if one == two:
        return True
    if one and two:
        return {*one.split(" = ")} == {*two.split(" = ")}
    # Only one side has a name: a variable may go unsaid, a label or a word if `may_label` allows
    # it.
    name = one or two
    # The answer must not add a name with a meaning of its own, such as f'(2).
    if two and not _PLAIN_NAME.fullmatch(two):
        return False
    labels = re.findall(r"label:([^,()=]*)", name)
    word = re.match(r"[^\W\d_]{3,}(?![^_])", name)
    if word and word[0] not in GREEK:
        labels.append(word[0])
    # A label of the reference may be allowed with the problem or without it.
    return all(may_label(label, problem) or (one and may_label(label, "")) for label in labels)


# x, x_1, f(2), \vec{v}, ∠A, but not f'(2), ‖x‖ or x:y.
_PLAIN_NAME = re.compile(
    r"(?!(?:overline|underline|overset|overleftrightarrow|hat|tilde|d?dot|norm)\()"
    r"(?:(?:bf|cal|frak|label|phrase):|tuple:)?[^():'^]*(?:\)|\(.*)?"
)


_FUNCTION = re.compile(r"(?:[A-Za-z]|[pP][hs]i)(?:'*|\^-1|_\w+)")


def _with_numbered_arguments(node: Node) -> Node:
    """Rename the arguments of a function's definition: `f(x) = x^2` -> `f(argument 0) = …`.

    f(x) = x^2 and f(t) = t^2 become the same tree. Any other relation is returned as it is.

    Args:
        node: a relation whose first side is a call.
    """
    head, value = node.args[0], node.args[-1]
    letters = [part.name for part in head.args if re.fullmatch("[a-df-hj-z]", part.name)]
    is_definition = node.name == "=" and _FUNCTION.fullmatch(head.name) and is_name(head)
    # In `f(2x) = …` the symbol x is no argument by itself: no definition.
    if not is_definition or len({*letters}) < len(free_symbols(head)):
        return node
    # f(x) = g(x) is an equation for two unknown functions.
    if value.kind == "call" and value.name not in FUNCTIONS:
        return node
    return substituted(
        node, {name: symbol(f"argument {place}") for place, name in enumerate(letters)}
    )


def signs(node: Node) -> Iterator[Node]:
    """Yield the values of `node` with the upper and the lower signs: 1 ± 2 gives 1 + 2 and 1 - 2.

    Without ± or ∓, yield only `node`.

    Raises:
        Undecided: there are several, which may go together or not.
    """
    count = sum(part.kind == "plusminus" for part in nodes(node))
    if count > 1:
        raise Undecided("several ± in one value")
    for upper in (True, False) if count else (True,):
        yield _signed(node, upper)


def _signed(node: Node, upper: bool) -> Node:
    """Return `node` with the upper sign of every ± and ∓, or with the lower one.

    1 ± 2 becomes 1 + 2 with the upper sign, and 1 + (-2) with the lower one.
    """
    parts = tuple(_signed(part, upper) for part in node.args)
    if node.kind != "plusminus":
        return node._replace(args=parts)
    last = parts[-1] if upper == (node.name == "+-") else negated(parts[-1])
    return last if len(parts) == 1 else Node("sum", (parts[0], last))


def compare_quantified(comparer: Comparer, reference: Node, answer: Node) -> Verdict | bool:
    """Compare statements about all values of a letter: `2n for all n` equals `2m for all m`.

    A quantifier over a whole set of numbers may be left out: `2n for all n` equals `2n`.
    """
    sides = [reference, answer]
    if reference.kind != answer.kind:
        place = 1 if answer.kind == "quantified" else 0
        statement, membership = sides[place].args
        domain = membership.args[1]
        # Which quantifiers may be left out:
        # - without a set, "for all n", whose domain is "any", or over a whole set, such as Z;
        # - in an inequality only one over the reals: x < 1 by itself is about all real x;
        # - in a function's equation, `f(x) = 1 for all x > 0`, also one over a half of a set, or a
        #   set without 0 (`_DOMAIN`).
        is_function = statement.kind == "relation" and statement.args[0].kind == "call"
        is_whole = (_DOMAIN if is_function else _WHOLE).fullmatch(domain.name)
        if not is_whole or (is_region(statement) and domain != REALS):
            return False
        sides[place] = statement
        return comparer.same(*sides)
    (expected, actual), memberships = zip(*(side.args for side in sides), strict=True)
    domains = {membership.args[1] for membership in memberships}
    old, new = (
        [part.name for part in nodes(membership.args[0]) if part.kind == "symbol"]
        for membership in memberships[::-1]
    )
    # The answer's letters become the reference's, so these must have no other use in the answer.
    if len(old) != len(new) or len(domains) > 1 or ({*new} - {*old}) & free_symbols(actual):
        return False
    letters = dict(zip(old, map(symbol, new), strict=True))
    return comparer.same(expected, substituted(actual, letters))


_WHOLE = re.compile(r"any|bb:[RZQNC]")
"""Names of whole sets of numbers: a quantifier over one of them may go unsaid."""
_DOMAIN = re.compile(r"any|bb:[RZQNC](?:[_^](?:[-+*0]|>0|<0|ge0))*")


_ENDLESS = re.compile(
    r"(?:an )?infinite(?:ly many| number)?(?: (?:of )?(?:solutions|values))?|infinity"
)


def compare_words(comparer: Comparer, reference: Node, answer: Node) -> bool:
    """Compare words by their spelling.

    One side may add a noun of the question: `obtuse` equals `obtuse triangle` for a problem with
    "Which triangle".
    """
    if reference.kind != answer.kind:
        words, other = (reference, answer) if reference.kind == "phrase" else (answer, reference)
        if other == INFINITY:
            return bool(_ENDLESS.fullmatch(words.name))
        # `abc` is the product `a b c`, but `was` is not `s a w`.
        factors = other.args if other.kind == "product" else ()
        are_letters = all(part.kind == "symbol" and len(part.name) == 1 for part in factors)
        return are_letters and "".join(part.name for part in factors) == words.name != ""
    short, long = sorted((reference.name, answer.name), key=len)
    head, _, noun = long.rpartition(" ")
    if head != short or noun in HEDGES or not re.fullmatch("[a-z]{3,}", noun):
        return short == long
    question = rf"\b(?:who|which|(?:type|kind|sort) of|is the) {noun}\b"
    return bool(re.search(question, comparer.problem.lower()))
