"""Groups: what stands between brackets, bars and `\\begin` … `\\end`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lib.verifier.tokens import END
from lib.verifier.tree import Node, Unparsable, call

if TYPE_CHECKING:
    from lib.verifier.parse import Parser

BRACKETS = {"(": (")", "]"), "[": ("]", ")"), "{set": ("}set",), "langle": ("rangle",)}
"""Opening brackets, and what may close each; "]" closes "(" in a half-open interval."""

_MATRICES = (
    "matrix",
    "pmatrix",
    "bmatrix",
    "Bmatrix",
    "vmatrix",
    "Vmatrix",
    "smallmatrix",
    "array",
)
_WRAPPERS = ("align", "aligned", "equation", "gathered", "gather", "split", "center")


def group(parser: Parser, opening: str) -> Node:
    """The group that `opening` (already taken) begins.

    Raises:
        Unparsable: it is not closed.
    """
    if opening == "{":
        return _braced(parser)
    closings = BRACKETS[opening]
    bars, parser.bars = parser.bars, 0
    in_set, parser.in_set = parser.in_set, opening == "{set"
    marks = ("mid", ":") if parser.peek.text == "|" else ("mid", ":", "|")
    inside = parser.statement(closing=(*closings, *marks) if parser.in_set else closings)
    if opening == "{set" and (parser.take("mid", "|", ":")):
        condition = parser.statement(closing=closings)
        inside = Node("builder", (inside, condition))
    parser.bars, parser.in_set = bars, in_set
    closing = parser.take(*closings)
    if closing is None:
        raise Unparsable(f"expected {closings[0]!r}, met {parser.peek.text!r}")
    return _closed(opening, closing.text, inside)


def _braced(parser: Parser) -> Node:
    bars, parser.bars = parser.bars, 0
    inside = parser.statement(closing=("}", "choose"))
    if parser.take("choose"):
        inside = call("binomial", inside, parser.statement(closing=("}",)))
    parser.bars = bars
    parser.expect("}")
    if inside.kind == "list" and inside.name == ",":
        return Node("set", inside.args)
    return inside


def _closed(opening: str, closing: str, inside: Node) -> Node:
    items = inside.args if inside.kind == "list" else (inside,)
    if opening == "{set":
        return inside if inside.kind == "builder" else Node("set", items)
    if inside.kind == "list":
        return Node("tuple", items, "<>" if opening == "langle" else opening + closing)
    if opening + closing in ("()", "[]", "langlerangle"):
        return inside
    raise Unparsable("a half-open bracket around one element")


def absolute(parser: Parser) -> Node:
    """`|…|`, its first bar already taken."""
    parser.take("|")
    parser.bars += 1
    inside = parser.statement(closing=("|",))
    parser.expect("|")
    parser.bars -= 1
    parser.take("|")
    return call("abs", inside)


def environment(parser: Parser) -> Node:
    """`\\begin{name}` (already taken) up to its end: a matrix, or what a wrapper holds."""
    name = _environment_name(parser)
    if name in _WRAPPERS:
        inside = parser.statement(closing=("end",))
        _end(parser)
        return inside
    if name not in _MATRICES:
        raise Unparsable(f"environment {name}")
    if name == "array":
        _column_layout(parser)
    rows = _rows(parser)
    _end(parser)
    matrix = Node("matrix", tuple(Node("tuple", row, "row") for row in rows), "matrix")
    return call("det", matrix) if name == "vmatrix" else matrix


def _environment_name(parser: Parser) -> str:
    letters = []
    parser.expect("{")
    while not parser.take("}"):
        if parser.peek is END:
            raise Unparsable("environment without a name")
        letters.append(parser.next().text)
    return "".join(letters).rstrip("*")


def _column_layout(parser: Parser) -> None:
    if parser.take("{"):
        while not parser.take("}"):
            if parser.next() is END:
                raise Unparsable("array without its columns")


def _end(parser: Parser) -> None:
    if not parser.take("end"):
        raise Unparsable("environment without its end")
    _environment_name(parser)


def _rows(parser: Parser) -> list[tuple[Node, ...]]:
    rows: list[tuple[Node, ...]] = []
    row: list[Node] = []
    while parser.peek.text != "end":
        row.append(parser.element())
        if parser.take("&"):
            continue
        rows.append(tuple(row))
        row = []
        if not parser.take("\\"):
            break
    if not rows or len({len(cells) for cells in rows}) != 1:
        raise Unparsable("rows of different lengths")
    return rows
