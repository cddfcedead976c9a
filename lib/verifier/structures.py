"""Choices, quantifiers, cases, words, vectors and matrices; what a problem's text settles."""

import itertools
import re
from collections.abc import Iterator

from lib.verifier.atoms import parse_number
from lib.verifier.evaluate import exact_value
from lib.verifier.phrases import read
from lib.verifier.rules import INTERVALS, Comparer, Verdict, either
from lib.verifier.sets import domain_of, is_region
from lib.verifier.tree import (
    REALS,
    Node,
    TooHard,
    Unparsable,
    free_symbols,
    is_name,
    negated,
    nodes,
    number,
    remembered,
    spelled,
    substituted,
    symbol,
)
from lib.verifier.words import HEDGES


def compare_choice(comparer: Comparer, reference: Node, answer: Node) -> Verdict | None:
    """Compare letters of multiple choice; a value after the letter is not another answer."""
    is_marked = either("choice", reference, answer)
    # A bare letter past E is rather a variable; '' where it is no letter of a choice.
    known = "ABCDEFGHIJ" if is_marked else "ABCDE"
    letters = [_letter(node, known) for node in (reference, answer)]
    if all(letters):
        texts = (*reference.args, *answer.args)
        option = options(comparer.problem).get(letters[0]) if texts else None
        # (B) followed by words that no option has.
        if option is None and any(text.kind == "phrase" for text in texts):
            return Verdict(False, "choice")
        value = option_value(option or "")
        is_same = value is None or all(comparer.equal(value, text) for text in texts)
        return Verdict(letters[0] == letters[1] and is_same, "choice")
    # "(B) 12" for 12: the value counts.
    if answer.kind == "choice" and answer.args:
        return comparer.same(reference, answer.args[0]).via("choice")
    return Verdict(False, "choice") if is_marked else None


def _letter(node: Node, known: str) -> str:
    is_letter = node.kind == "symbol" and node.name.upper() in known and len(node.name) == 1
    return node.name.upper() if node.kind == "choice" or is_letter else ""


def compare_quantified(comparer: Comparer, reference: Node, answer: Node) -> Verdict | None:
    """Compare statements for all values of a letter; the letter's name is bound."""
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
    # Few letters: every way to rename them.
    for order in itertools.permutations(others):
        renamed = substituted(two, dict(zip(order, map(symbol, letters), strict=True)))
        decision = comparer.same(one, renamed)
        if decision.equal:
            return decision.via("quantifier")
    return Verdict(False, "quantifier")


_WHOLE = re.compile(r"any|bb:[RZQNC](?:[_^](?:[-+*0]|>0|<0|ge0))*")
"""Sets of numbers that a quantifier may be over and yet go unsaid."""


def compare_cases(comparer: Comparer, reference: Node, answer: Node) -> Verdict | None:
    """Compare values with their conditions, in any order."""
    if reference.kind != answer.kind or len(reference.args) != len(answer.args):
        return None if either("relation", reference, answer) else Verdict(False, "cases")
    rest = list(answer.args)
    for row in reference.args:
        match = next((other for other in rest if _same_case(comparer, row, other, reference)), None)
        if match is None:
            return Verdict(False, "cases")
        # Each case once.
        rest.remove(match)
    return Verdict(True, "cases")


def _same_case(comparer: Comparer, one: Node, two: Node, cases: Node) -> bool:
    if len(one.args) != 2 or len(two.args) != 2 or not comparer.equal(one.args[0], two.args[0]):
        return False
    (_, left), (_, right) = one.args, two.args
    conditions = _condition(left), _condition(right)
    # Of two cases the other condition settles it.
    if conditions[0] == conditions[1] or ("otherwise" in conditions and len(cases.args) == 2):
        return True
    # As sets of numbers, x > 1 and X > 1 are one.
    return free_symbols(left) == free_symbols(right) and comparer.equal(left, right)


def _condition(node: Node) -> str:
    """Return a condition in words, without "if" and "is"."""
    text = node.name.lower() if node.kind == "phrase" else spelled(node)
    if node.kind == "unit" and node.args[0].kind == "symbol":
        text = f"{node.args[0].name} {node.name.lower()}"
    words = [word for word in text.split() if word not in ("if", "is", "for", "when", ",", "an")]
    return "otherwise" if words in (["otherwise"], ["else"]) else " ".join(words)


def compare_words(comparer: Comparer, reference: Node, answer: Node) -> Verdict | None:
    """Compare words, times and dates, equal in one spelling only."""
    if either("time", reference, answer):
        one, two = _face(reference), _face(answer)
        is_same = one and two and one[0] == two[0] and (one[1] == two[1] or not (one[1] and two[1]))
        return Verdict(bool(is_same), "time")
    if reference.kind != answer.kind:
        return Verdict(False, "words")
    short, long = sorted((reference.name, answer.name), key=len)
    noun = long.removeprefix(f"{short} ")
    asked = rf"\b(?:who|which|(?:type|kind|sort) of|is the) {re.escape(noun)}\b"
    is_noun = re.fullmatch(r"[a-z]{3,}", noun) and noun not in HEDGES
    is_asked = is_noun and re.search(asked, comparer.problem.lower())
    return Verdict(short == long or bool(is_asked), "words")


def _face(node: Node) -> tuple[str, str] | None:
    """Return hour and minute, and the half of the day."""
    match node:
        case Node("time"):
            face, _, half = node.name.partition(" ")
            return face, half
        case Node("ratio", (Node(name=hours), Node(name=minutes))) if re.fullmatch(
            r"\d+:\d\d", f"{hours}:{minutes}"
        ):
            hour = int(hours)
            return (f"{hour - 12}:{minutes}", "p") if hour > 12 else (f"{hour}:{minutes}", "")
    return None


_UNIT_VECTORS = ("bf:i", "bf:j", "bf:k")
_POINTS = frozenset("APQMCDV")
Grid = tuple[tuple[Node, ...], ...]
"""Rows of cells; a tuple, a vector and a column have one cell a row."""


def _grid(node: Node) -> Grid | None:
    """Return the cells of a tuple, a matrix, or a sum, multiple or product of them."""
    match node:
        case Node("tuple", items, "()" | "<>"):
            return tuple((item,) for item in items)
        case Node("call", items, name) if name in _POINTS and len(items) > 1:
            return tuple((item,) for item in items)
        case Node("symbol", name=name) if name in _UNIT_VECTORS:
            return tuple((number(int(name == other)),) for other in _UNIT_VECTORS)
        case Node("matrix", rows, "matrix"):
            return tuple(row.args for row in rows)
        case Node("tuple", rows, "[]") if all(
            row.kind == "tuple" and row.name == "[]" for row in rows
        ):
            return tuple(row.args for row in rows)
        case Node("sum", parts):
            grids = [_grid(part) for part in parts]
            known = [grid for grid in grids if grid]
            if len(known) < len(parts) or len({_shape(grid) for grid in known}) > 1:
                return None
            return tuple(
                tuple(Node("sum", cells) for cells in zip(*rows, strict=True))
                for rows in zip(*known, strict=True)
            )
        case Node("product" | "quotient" as kind, parts):
            match [(place, grid) for place, part in enumerate(parts) if (grid := _grid(part))]:
                case [(place, grid)] if kind == "product" or not place:
                    before, after = parts[:place], parts[place + 1 :]
                    return tuple(
                        tuple(Node(kind, (*before, cell, *after)) for cell in row) for row in grid
                    )
        case Node("call", (left, right), "ordered " | "ordered cdot"):
            # Each further product multiplies what is in a cell.
            is_short = spelled(node).count("ordered") < 3
            return _multiplied(_grid(left), _grid(right)) if is_short else None
    return None


def _shape(grid: Grid) -> tuple[int, ...]:
    return tuple(map(len, grid))


def _multiplied(left: Grid | None, right: Grid | None) -> Grid | None:
    # Rows of one length, as many as the other's columns.
    if not left or not right or {*_shape(left)} != {len(right)} or len({*_shape(right)}) > 1:
        return None
    if len(left) * len(right[0]) > 64:
        return None
    return tuple(
        tuple(
            Node("sum", tuple(Node("product", pair) for pair in zip(row, column, strict=True)))
            for column in zip(*right, strict=True)
        )
        for row in left
    )


def compare_grid(comparer: Comparer, reference: Node, answer: Node) -> Verdict | None:
    """Compare tuples, vectors and matrices, cell by cell."""
    if reference.kind == answer.kind == "tuple" and {reference.name, answer.name} <= INTERVALS:
        is_same = reference.name == answer.name
        return comparer.in_order(reference.args, answer.args if is_same else (), "tuple")
    one, two = _grid(reference), _grid(answer)
    if not one or not two:
        return Verdict(False, "matrix") if one or two else None
    if any(part.name in _UNIT_VECTORS for part in (*nodes(reference), *nodes(answer))):
        # In the plane, without a part along k.
        one, two = (
            side[:2] if len(side) > 2 and exact_value(side[2][0]) == 0 else side
            for side in (one, two)
        )
    if _shape(one) != _shape(two):
        return Verdict(False, "matrix")
    is_matrix = {*_shape(one)} != {1} or reference.kind == answer.kind == "matrix"
    step = "matrix" if is_matrix else "tuple" if reference.kind == answer.kind else "vector"
    return comparer.in_order([*itertools.chain(*one)], [*itertools.chain(*two)], step)


Conversion = tuple[str, Node, Node]
"""Name of the rule, reference and answer."""


def conversions(text: str, expected: Node, actual: Node, problem: str) -> Iterator[Conversion]:
    """Yield equivalent forms of a reference and an answer, with its text, that were not equal."""
    if comma := _DECIMAL_COMMA.fullmatch(text.strip().strip("$")):
        value = parse_number(f"{comma[2]}.{comma[3]}")
        yield "decimal comma", expected, negated(value) if comma[1] else value
    yield from _choices(expected, actual, problem)
    yield from _renamed(expected, actual, problem)


_DECIMAL_COMMA = re.compile(r"(-?)(\d+),(\d{1,2}|\d{4,})")
_OPTION = re.compile(
    r"(?:\\(?:text|textbf|mathrm|mathbf)\s*\{\s*)?(?:\((?=[A-J]\))|(?<![A-Za-z])(?=[A-J][.)]))"
    r"([A-J])[.)]\s*\}?(?:\\[ ,;]|~|\s|\\q?quad)*"
)


@remembered(512)
def options(problem: str) -> dict[str, str]:
    """Return the letters and the texts of the options that a problem lists, at least two from A
    on; without those whose text another has.
    """
    _, *parts = _OPTION.split(problem)
    letters = "".join(parts[::2])
    texts = [re.sub(r"(?:\\q?quad|\\\\|[\s,;$])+$", "", text).strip() for text in parts[1::2]]
    is_listed = len(letters) > 1 and "ABCDEFGHIJ".startswith(letters)
    listed = zip(letters, texts, strict=False) if is_listed else ()
    return {letter: text for letter, text in listed if texts.count(text) == 1}


def option_value(text: str) -> Node | None:
    """Parse the text of an option."""
    try:
        return read(text.strip("$. "))
    except (Unparsable, TooHard):
        return None


def _choices(expected: Node, actual: Node, problem: str) -> Iterator[Conversion]:
    """Return the letter of an option for its text, and its text for the letter."""
    for one, other in ((expected, actual), (actual, expected)):
        value = option_value(options(problem).get(_capital(one), ""))
        if value and not _capital(other) and other.kind != "choice":
            yield ("option", value, other) if one is expected else ("option", other, value)


def _capital(node: Node) -> str:
    is_letter = node.kind == "symbol" and len(node.name) == 1 and node.name.isupper()
    return node.name if is_letter or (node.kind == "choice" and not node.args) else ""


_MAX_LETTERS = 3
_PARAMETERS = frozenset("kmnjlpqrstabcdCK") | {"lambda", "mu"}


def _renamed(expected: Node, actual: Node, problem: str) -> Iterator[Conversion]:
    """Rename parameters that are not the problem's."""
    mine, theirs = (free_symbols(_defined(node)) for node in (expected, actual))
    own, other = sorted(mine - theirs), sorted(theirs - mine)
    is_own = all(_is_parameter(name, problem) for name in (*own, *other))
    # Without a problem only periods and constants of integration are certainly parameters.
    is_known = problem or {*own, *other} == {"C", "c"}
    is_known = is_known or all("pi" in str(node) for node in (expected, actual))
    if not (is_own and is_known and 0 < len(own) == len(other) <= _MAX_LETTERS):
        return
    for order in itertools.permutations(own):
        names = {old: symbol(new) for old, new in zip(other, order, strict=True)}
        yield "parameter", expected, substituted(actual, names)


def _defined(node: Node) -> Node:
    """Return the name that an equation defines."""
    is_definition = node.kind == "relation" and node.name == "=" and is_name(node.args[0])
    return node.args[-1] if is_definition else node


def is_given(letter: str, problem: str) -> bool:
    """Return True if a letter is the problem's."""
    return re.search(rf"(?<![A-Za-z\\]){re.escape(letter)}(?![A-Za-z])", problem) is not None


def _is_parameter(name: str, problem: str) -> bool:
    return name in _PARAMETERS and not is_given(name, problem)
