"""Matrices, vectors and tuples."""

from collections.abc import Sequence

from lib.verifier.quantities import Same
from lib.verifier.tree import Node

_INTERVALS = frozenset(["()", "[]", "(]", "[)"])


def same_matrix(reference: Node, answer: Node, same: Same) -> bool:
    """Same shape and entries; a vector may be a row, a column or a tuple."""
    right, given = _rows(reference), _rows(answer)
    if right is None or given is None or len(right) != len(given):
        return False
    return all(same_in_order(one, two, same) for one, two in zip(right, given, strict=True))


def _rows(node: Node) -> list[tuple[Node, ...]] | None:
    """Rows of a matrix; a vector may be written as a tuple, a column or a row."""
    if node.kind == "matrix" or is_nested(node):
        rows = [row.args for row in node.args]
        if len({len(row) for row in rows}) != 1:
            return None
        return [(row[0],) for row in rows] if len(rows[0]) == 1 else _column(rows)
    if node.kind == "product":
        return _scaled(node)
    if node.kind == "power" and node.args[1].name in ("T", "top"):
        return _transposed(node.args[0])
    return [(item,) for item in node.args] if node.kind in ("tuple", "list") else None


def _transposed(node: Node) -> list[tuple[Node, ...]] | None:
    rows = _rows(node)
    if rows is None or len(rows[0]) == 1:
        return rows
    return list(zip(*rows, strict=True))


def is_nested(node: Node) -> bool:
    """A list of rows, `[[1,2],[3,4]]`."""
    return node.kind == "tuple" and all(item.kind == "tuple" for item in node.args)


def _scaled(node: Node) -> list[tuple[Node, ...]] | None:
    """A number times a matrix."""
    matrices = [factor for factor in node.args if factor.kind == "matrix"]
    rows = _rows(matrices[0]) if len(matrices) == 1 else None
    others = tuple(factor for factor in node.args if factor.kind != "matrix")
    return rows and [tuple(Node("product", (*others, item)) for item in row) for row in rows]


def _column(rows: list[tuple[Node, ...]]) -> list[tuple[Node, ...]]:
    return [(item,) for item in rows[0]] if len(rows) == 1 else rows


def same_in_order(right: Sequence[Node], given: Sequence[Node], same: Same) -> bool:
    """Equal elements, one by one."""
    return len(right) == len(given) and all(
        same(one, two)[0] for one, two in zip(right, given, strict=True)
    )


def same_tuple(reference: Node, answer: Node, same: Same) -> bool:
    """Same brackets where brackets mean something, and the same elements in the same order."""
    if reference.kind != "tuple" or answer.kind != "tuple":
        return False
    names = {reference.name, answer.name}
    if len(names) == 2 == len(reference.args) and names <= _INTERVALS:
        return False
    return same_in_order(reference.args, answer.args, same)
