"""Words, vectors and matrices."""

import itertools
import re
from fractions import Fraction

from lib.verifier.comparer import INTERVALS, Comparer
from lib.verifier.evaluate import exact_value
from lib.verifier.relations import value_of
from lib.verifier.rules import Decision
from lib.verifier.tree import (
    Node,
    free_symbols,
    nodes,
    number,
)
from lib.verifier.words import HEDGES


def compare_words(comparer: Comparer, reference: Node, answer: Node) -> Decision | None:
    """Compare words, times and dates, equal in one spelling only."""
    kinds = {reference.kind, answer.kind}
    if not kinds & {"phrase", "label", "time", "date"}:
        return None
    if "time" in kinds:
        faces = [_face(node) for node in (reference, answer)]
        halves = {face[1] for face in faces if face}
        is_same = bool(faces[0] and faces[1]) and faces[0][0] == faces[1][0]  # type: ignore[index]
        return Decision(is_same and ("" in halves or len(halves) == 1), "time")
    if reference.kind != answer.kind:
        return Decision(False, "words")
    short, long = sorted((reference.name, answer.name), key=len)
    noun = long.removeprefix(f"{short} ")
    is_asked = (
        re.fullmatch(r"[a-z]{3,}", noun)
        and noun not in HEDGES
        and re.search(
            rf"\b(?:who|which|(?:type|kind|sort) of|is the) {noun}\b", comparer.problem.lower()
        )
    )
    return Decision(short == long or bool(is_asked), "words")


def _face(node: Node) -> tuple[str, str] | None:
    """Return hour and minute, and the half of the day."""
    if node.kind == "time":
        face, _, half = node.name.partition(" ")
        return face, half
    parts = [part.name for part in node.args]
    is_face = node.kind == "ratio" and len(parts) == 2 and all(name.isdigit() for name in parts)
    if not is_face or len(parts[1]) != 2:
        return None
    hour = int(parts[0])
    return (f"{hour - 12}:{parts[1]}", "p") if hour > 12 else (f"{hour}:{parts[1]}", "")


_UNIT_VECTORS = ("bf:i", "bf:j", "bf:k")


_POINTS = frozenset("APQMCDV")


def _components(node: Node) -> tuple[Node, ...] | None:
    """Return the components of a tuple, a column or a sum of vectors."""
    if node.kind == "tuple":
        return node.args if node.name in ("()", "<>") else None
    if node.kind == "matrix":
        columns = all(len(row.args) == 1 for row in node.args) and node.name == "matrix"
        return tuple(row.args[0] for row in node.args) if columns else None
    if node.kind == "call" and node.name in _POINTS and len(node.args) > 1:
        return node.args
    if node.kind == "symbol" and node.name in _UNIT_VECTORS:
        return tuple(number(int(name == node.name)) for name in _UNIT_VECTORS)
    if node.kind in ("product", "quotient"):
        parts = [_components(part) for part in node.args]
        places = [place for place, part in enumerate(parts) if part]
        if len(places) != 1 or (node.kind == "quotient" and places != [0]):
            return None
        (place,) = places
        return tuple(
            node._replace(args=(*node.args[:place], item, *node.args[place + 1 :]))
            for item in parts[place] or ()
        )
    if node.kind == "sum":
        vectors = [_components(part) for part in node.args]
        sizes = {len(vector) if vector else 0 for vector in vectors}
        if len(sizes) != 1 or 0 in sizes:
            return None
        return tuple(Node("sum", items) for items in zip(*(v for v in vectors if v), strict=True))
    return None


def compare_vector(comparer: Comparer, reference: Node, answer: Node) -> Decision | None:
    """Compare tuples and vectors by component, matrices by cell."""
    kinds = {"tuple", "matrix"}
    is_vector = any(
        part.kind in kinds or part.name in _UNIT_VECTORS
        for node in (reference, answer)
        for part in nodes(node)
    )
    if not is_vector:
        return None
    if reference.kind == answer.kind == "tuple" and {reference.name, answer.name} <= INTERVALS:
        if reference.name != answer.name:
            return Decision(False, "tuple")
        if len(reference.args) != len(answer.args):
            return Decision(False, "tuple")
        return comparer.all_same(zip(reference.args, answer.args, strict=True), "tuple")
    one, two = (_components(value_of(node)) for node in (reference, answer))
    if one and two:
        parts = (*nodes(reference), *nodes(answer))
        if len(one) != len(two) and any(part.name in _UNIT_VECTORS for part in parts):
            # In the plane, without a part along k.
            one, two = (v[:2] if exact_or_none(v[-1]) == 0 else v for v in (one, two))
        if len(one) != len(two):
            return Decision(False, "tuple")
        return comparer.all_same(
            zip(one, two, strict=True), "tuple" if reference.kind == answer.kind else "vector"
        )
    rows, others = _matrix(reference), _matrix(answer)
    if rows and others:
        if [*map(len, rows)] != [*map(len, others)]:
            return Decision(False, "matrix")
        cells = zip(itertools.chain(*rows), itertools.chain(*others), strict=True)
        return comparer.all_same(cells, "matrix")
    return Decision(False, "matrix") if one or two or rows or others else None


def exact_or_none(node: Node) -> Fraction | None:
    """Return the rational value of a tree without symbols."""
    return None if free_symbols(node) else exact_value(node)


Matrix = list[tuple[Node, ...]]


def _matrix(node: Node) -> Matrix | None:
    """Return the rows of a matrix, a list of rows, or a multiple or product of matrices."""
    if node.kind == "matrix" and node.name == "matrix":
        return [row.args for row in node.args]
    if (
        node.kind == "tuple"
        and node.name == "[]"
        and all(row.kind == "tuple" and row.name == "[]" for row in node.args)
    ):
        return [row.args for row in node.args]
    if node.kind in ("product", "quotient"):
        rows = [_matrix(part) for part in node.args]
        places = [place for place, part in enumerate(rows) if part]
        if len(places) != 1 or (node.kind == "quotient" and places != [0]):
            return None
        (place,) = places
        before, after = node.args[:place], node.args[place + 1 :]
        return [
            tuple(node._replace(args=(*before, x, *after)) for x in row)
            for row in rows[place] or ()
        ]
    if node.kind == "call" and node.name.startswith("ordered") and node.name != "ordered times":
        left, right = map(_matrix, node.args)
        # Rows of one length, as many as the other's columns.
        if (
            left
            and right
            and {*map(len, left)} == {len(right)}
            and len({*map(len, right)}) == 1
            and len(left) * len(right[0]) <= 64
        ):
            return [
                tuple(
                    Node(
                        "sum",
                        tuple(Node("product", pair) for pair in zip(row, column, strict=True)),
                    )
                    for column in zip(*right, strict=True)
                )
                for row in left
            ]
    if node.kind == "relation" and node.name == "=" and len(node.args) == 2:
        return _matrix(node.args[1])
    return None


def compare_determinant(comparer: Comparer, reference: Node, answer: Node) -> Decision | None:
    """Compare determinants, written out."""
    determinants = [
        node.kind == "call" and node.name == "det" and _expanded(node.args[0])
        for node in (reference, answer)
    ]
    if not any(determinants):
        return None
    return comparer.same(determinants[0] or reference, determinants[1] or answer)


def _expanded(node: Node) -> Node | None:
    """Return the determinant of a small matrix, written out."""
    rows = _matrix(node)
    size = len(rows or ())
    if not rows or size > 4 or any(len(row) != size for row in rows):
        return None
    terms = []
    for order in itertools.permutations(range(size)):
        turns = sum(a > b for a, b in itertools.combinations(order, 2))
        factors = tuple(rows[place][column] for place, column in enumerate(order))
        terms.append(Node("product", (number((-1) ** turns), *factors)))
    return Node("sum", tuple(terms))
