"""What stands after an atom: exponents, subscripts, signs, units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lib.verifier import atoms
from lib.verifier.tokens import Token
from lib.verifier.tree import Node, Unparsable, symbol
from lib.verifier.units import is_unit, number_word

if TYPE_CHECKING:
    from lib.verifier.parse import Parser


def exponent_of(parser: Parser) -> Node:
    """What stands after `^`: a group, a number with its sign, or one atom."""
    if side := _side(parser):
        return symbol(side)
    if parser.peek.text == "-" and parser.peek.kind == "operator":
        return parser.signed()
    base = atoms.atom(parser)
    if parser.peek.text == "^" and base.kind == "number":
        return postfix(parser, base)
    return base


def _side(parser: Parser) -> str:
    """The side from which a limit is approached, `0^+` or `0^{-}`; '' where there is none."""
    braced = parser.peek.text == "{"
    sign, following = parser.ahead(braced), parser.ahead(braced + 1)
    ends = following.text == "}" if braced else following.kind == "end" or following.text in "})"
    if sign.kind != "operator" or sign.text not in "+-" or not ends:
        return ""
    for _ in range(3 if braced else 1):
        parser.next()
    return sign.text


def postfix(parser: Parser, node: Node) -> Node:
    """`node` with all that is attached to it."""
    while True:
        token = parser.peek
        if token.kind == "operator":
            if token.text == "^":
                parser.next()
                node = _raised(parser, node)
                continue
            if token.text == "_":
                parser.next()
                node = _lowered(parser, node)
                continue
            if token.text in ("!", "%", "'"):
                parser.next()
                node = _attached(node, token.text)
                continue
        elif token.kind == "command" and token.text in ("degree", "circ"):
            parser.next()
            node = _degrees(parser, node)
            continue
        return node


def _degrees(parser: Parser, node: Node) -> Node:
    """An angle, or with C or F after it a temperature."""
    if parser.peek.kind == "letter" and parser.peek.text in "CF":
        return Node("unit", (node,), f"°{parser.next().text}")
    return Node("degree", (node,))


def _raised(parser: Parser, node: Node) -> Node:
    if parser.take("'", "prime"):
        return _attached(node, "'")
    exponent = exponent_of(parser)
    if exponent in (symbol("circ"), symbol("degree")) or (
        exponent == symbol("o") and node.kind == "number"
    ):
        return _degrees(parser, node)
    if exponent == symbol("prime"):
        return _attached(node, "'")
    if node.kind == "symbol" and parser.peek.text == "_" and parser.peek.kind == "operator":
        parser.next()
        node = _lowered(parser, node)
    return Node("power", (node, exponent))


def _lowered(parser: Parser, node: Node) -> Node:
    below = atoms.argument(parser)
    if node.kind == "number" and below.kind in ("number", "text", "product"):
        return Node("base", (), node.name, below.value or number_word(spelled(below)))
    if node.kind == "power" and node.args[0].kind == "symbol":
        return Node("power", (symbol(f"{node.args[0].name}_{spelled(below)}"), node.args[1]))
    if node.kind not in ("symbol", "call"):
        raise Unparsable("a subscript on what is no name")
    return node._replace(name=f"{node.name}_{spelled(below)}")


def _attached(node: Node, mark: str) -> Node:
    if mark == "'":
        if node.kind not in ("symbol", "call"):
            raise Unparsable("a prime on what is no name")
        return node._replace(name=f"{node.name}'")
    return Node("factorial" if mark == "!" else "percent", (node,))


def _is_unit(token: Token) -> bool:
    return token.kind == "text" or (token.kind == "letter" and is_unit(token.text))


def with_unit(parser: Parser, node: Node) -> Node:
    """`node` with the unit that stands after it: words, powers, and `/` between words."""
    parts = [parser.next().text]
    if node.kind == "product" and node.args[-1] == symbol("mu"):
        parts.insert(0, "μ")
        node = node.args[0] if len(node.args) == 2 else node._replace(args=node.args[:-1])
    while True:
        token = parser.peek
        following = parser.ahead(1)
        if token.kind == "text":
            parts.append(f" {parser.next().text}")
        elif token.text == "^" and token.kind == "operator":
            parser.next()
            parts.append(f"^{spelled(exponent_of(parser)) or '?'}")
        elif token.text in ("/", "cdot", "*") and _is_unit(following):
            parts.append("/" if parser.next().text == "/" else " ")
            parts.append(parser.next().text)
        else:
            return Node("unit", (node,), "".join(parts))


def spelled(node: Node) -> str:
    """A name for a subscript or an accent: what it says, without spaces."""
    inside = ",".join(spelled(part) for part in node.args)
    return f"{node.name or node.kind if node.args else node.name}{f'({inside})' if inside else ''}"
