"""The parser's smallest parts: numbers, names, groups, functions, and what is attached to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lib.verifier.attached import exponent_of, spelled
from lib.verifier.brackets import BRACKETS, absolute, environment, group
from lib.verifier.numbers import decimal_value
from lib.verifier.tree import Node, TooHard, Unparsable, call, number, symbol
from lib.verifier.vocabulary import ACCENTS, ALIASES, FUNCTIONS, GREEK

if TYPE_CHECKING:
    from lib.verifier.parse import Parser

Rule = Callable[["Parser"], Node]

_IN_ARGUMENTS = (",", "=", "<", ">", "le", "ge")
_OPAQUE_LETTERS = frozenset("fgFG")
_CALCULUS = ("sum", "prod", "int", "lim", "oint", "iint")
_NAMED_SETS = {"R": "reals", "Z": "integers", "N": "naturals", "Q": "rationals", "C": "complexes"}


def starts_atom(parser: Parser) -> bool:
    """Whether the next token begins a factor."""
    token = parser.peek
    if token.kind in ("number", "letter"):
        return True
    if token.kind == "operator":
        if token.text == "|":
            return parser.bars == 0 and not parser.in_set
        return token.text in BRACKETS or token.text == "{"
    return token.kind == "command" and (
        token.text in FUNCTIONS
        or token.text in ALIASES
        or token.text in GREEK
        or token.text in _COMMANDS
        or token.text in ACCENTS
        or token.text.startswith("mathbb")
    )


def atom(parser: Parser) -> Node:
    """One number, name, group or function application.

    Raises:
        Unparsable: none of these.
    """
    token = parser.next()
    if token.kind == "number":
        return _number(parser, token.text)
    if token.kind == "letter":
        return _name(parser, token.text)
    if token.kind == "text":
        return Node("text", (), token.text)
    if token.kind == "operator":
        if token.text == "|":
            return absolute(parser)
        if token.text in BRACKETS or token.text == "{":
            return group(parser, token.text)
    if token.kind == "command":
        return _command(parser, token.text)
    raise Unparsable(f"unexpected {token.text!r}" if token.text else "unexpected end")


def _number(parser: Parser, literal: str) -> Node:
    if parser.peek.text == "overline" and parser.ahead(1).text == "{":
        return _repeating(parser, literal)
    return parse_number(literal)


def parse_number(literal: str) -> Node:
    """The node of a number token.

    Raises:
        TooHard: too many digits.
    """
    mantissa, _, exponent = literal.lower().partition("e")
    if len(exponent) > 6:
        raise TooHard("exponent of a literal")
    value = decimal_value(mantissa, int(exponent or 0))
    if value is None:
        raise TooHard("digits of a literal")
    return number(value, literal)


def _repeating(parser: Parser, literal: str) -> Node:
    """`0.1\\overline{6}`: digits, then digits that repeat for ever."""
    parser.next()
    repeated = argument(parser)
    digits = repeated.name
    plain = parse_number(literal)
    if "." not in literal or not digits.isdigit() or plain.value is None or repeated.value is None:
        raise Unparsable("a bar over something that is no decimal")
    places = len(literal.partition(".")[2])
    tail = repeated.value / ((10 ** len(digits) - 1) * 10**places)
    return number(plain.value + tail)


def _name(parser: Parser, letter: str) -> Node:
    following = parser.peek.text
    if following == "{":
        following = parser.ahead(1).text
    if following == "(" and (letter in _OPAQUE_LETTERS or _is_defined(parser)):
        return call(letter, *arguments(parser))
    return symbol(letter)


def _is_defined(parser: Parser) -> bool:
    """Whether a name is applied to names and an equation follows: `N(n) = …`."""
    start = parser.position + 1 + (parser.peek.text == "{")
    for position in range(start, min(start + 8, len(parser.tokens) - 2)):
        token = parser.tokens[position]
        if token.text == ")":
            braced = parser.tokens[position + 1].text == "}"
            return parser.tokens[position + 1 + braced].text in ("=", "approx")
        if token.kind not in ("letter", "number") and token.text not in _IN_ARGUMENTS:
            return False
    return False


def arguments(parser: Parser) -> tuple[Node, ...]:
    """What stands in the next group, split at commas."""
    inside = argument(parser)
    return inside.args if inside.kind in ("list", "tuple", "set") else (inside,)


def argument(parser: Parser) -> Node:
    """One argument of a command: a group, or the next atom, without what is attached to it."""
    return atom(parser)


def _digit(parser: Parser, *, last: bool) -> Node:
    """An argument of `\\frac`: of an unbraced number, one digit, or all of it when `last`."""
    token = parser.peek
    if token.kind == "number" and not last and len(token.text) > 1 and token.text.isdigit():
        parser.tokens[parser.position] = token._replace(text=token.text[1:], spaced=False)
        return number(int(token.text[0]), token.text[0])
    return argument(parser)


def _command(parser: Parser, name: str) -> Node:
    name = ALIASES.get(name, name)
    if name in _COMMANDS:
        return _COMMANDS[name](parser)
    if name in FUNCTIONS:
        return _function(parser, name)
    if name in ACCENTS:
        return _accented(parser, name)
    if name in GREEK:
        return _greek(parser, name)
    if name.startswith("mathbb"):
        return symbol(_NAMED_SETS.get(name[6:], name))
    if name in ("pm", "mp"):
        return Node("plusminus", (parser.signed_product(),), "+-" if name == "pm" else "-+")
    raise Unparsable(f"unknown command \\{name}")


def _greek(parser: Parser, name: str) -> Node:
    if name == "triangle" or name == "square":
        return _figure(parser, name)
    if name == "Delta" and parser.peek.kind == "letter":
        return symbol(f"Delta {parser.next().text}")
    if name in ("Phi", "phi", "psi", "Psi") and parser.peek.text == "(":
        return call(name, *arguments(parser))
    return symbol(name)


def _figure(parser: Parser, name: str) -> Node:
    """`\\angle ABC`: the mark and the letters after it are one name."""
    letters = []
    while parser.peek.kind == "letter":
        letters.append(parser.next().text)
    return symbol(f"{name} {''.join(letters)}")


def _accented(parser: Parser, name: str) -> Node:
    inside = argument(parser)
    if name == "overline" and inside.kind == "symbol":
        name = "bar"
    plain = name in ("vec", "overrightarrow", "underline", "overline")
    return inside if plain and inside.kind != "number" else symbol(f"{name}({spelled(inside)})")


def _fraction(parser: Parser) -> Node:
    braced = parser.peek.text == "{"
    above = _digit(parser, last=False)
    if parser.take("/"):
        return Node("quotient", (above, parser.power()))
    return Node("quotient", (above, _digit(parser, last=braced)))


def _root(parser: Parser) -> Node:
    index = number(2)
    if parser.take("["):
        index = parser.statement(closing=("]",))
        parser.expect("]")
    return Node("root", (index, argument(parser)))


def _binomial(parser: Parser) -> Node:
    if parser.peek.text == "(":
        return call("binomial", *arguments(parser))
    above = _digit(parser, last=False)
    return call("binomial", above, _digit(parser, last=True))


def _rounded(name: str, closing: str) -> Rule:
    def parse_inside(parser: Parser) -> Node:
        inside = parser.statement(closing=(closing,))
        parser.expect(closing)
        return call(name, inside)

    return parse_inside


def _function(parser: Parser, name: str) -> Node:
    """A function with its power, base and argument: `\\sin^2 x`, `\\log_2 8`, `\\max(1, 2)`."""
    base = exponent = None
    while parser.peek.text in ("^", "_") and parser.peek.kind == "operator":
        if parser.next().text == "^":
            exponent = exponent_of(parser)
        else:
            base = argument(parser)
    if not starts_atom(parser) and parser.peek.text != "-":
        return symbol(name)
    operand = _operand(parser)
    if name == "sqrt":
        applied = Node("root", (number(2), operand[0]))
    elif base is not None:
        applied = (
            call(name, operand[0], base)
            if name == "log"
            else call(f"{name}_{spelled(base)}", *operand)
        )
    else:
        applied = call(name, *operand)
    if exponent is None:
        return applied
    if exponent.value == -1 and name in ("sin", "cos", "tan", "cot", "sec", "csc"):
        return call(f"arc{name}", *operand)
    return Node("power", (applied, exponent))


def _operand(parser: Parser) -> tuple[Node, ...]:
    """A group with its items, or the factors up to the next sign, function or group."""
    if parser.peek.text in ("(", "{", "[", "{set") and parser.peek.kind == "operator":
        return arguments(parser)
    factors = [parser.signed() if parser.peek.text == "-" else parser.power()]
    while starts_atom(parser) and not _ends_operand(parser):
        factors.append(parser.power())
    return (factors[0] if len(factors) == 1 else Node("product", tuple(factors)),)


def _ends_operand(parser: Parser) -> bool:
    token = parser.peek
    opens = token.text in ("(", "[", "{", "|")
    if parser.integrals and token.text == "d" and token.kind == "letter":
        return True
    return opens or token.text in FUNCTIONS or token.text in ALIASES


def _approached(lower: Node) -> Node:
    """`x \\to 0^+` with the side in the name of the relation, "to+"."""
    if lower.kind != "relation" or lower.name != "to" or lower.args[1].kind != "power":
        return lower
    end, side = lower.args[1].args
    if side.name not in ("+", "-"):
        return lower
    return Node("relation", (lower.args[0], end), f"to{side.name}")


def _calculus(name: str) -> Rule:
    def parse_parts(parser: Parser) -> Node:
        lower = upper = Node("list")
        while parser.peek.text in ("^", "_") and parser.peek.kind == "operator":
            if parser.next().text == "_":
                lower = argument(parser)
            else:
                upper = argument(parser)
        parser.integrals += name == "int"
        body = parser.product()
        parser.integrals -= name == "int"
        return Node("calculus", (_approached(lower), upper, body), name)

    return parse_parts


_COMMANDS: dict[str, Rule] = {
    "frac": _fraction,
    "sqrt": _root,
    "binomial": _binomial,
    "binom": _binomial,
    "dbinom": _binomial,
    "tbinom": _binomial,
    "begin": environment,
    "infty": lambda parser: symbol("infinity"),
    "emptyset": lambda parser: Node("set"),
    "angle": lambda parser: _figure(parser, "angle"),
    "measuredangle": lambda parser: _figure(parser, "angle"),
    "lfloor": _rounded("floor", "rfloor"),
    "lceil": _rounded("ceil", "rceil"),
    "langle": lambda parser: group(parser, "langle"),
    "{set": lambda parser: group(parser, "{set"),
    "i": lambda parser: symbol("i"),
    "e": lambda parser: symbol("e"),
    "imath": lambda parser: symbol("i"),
    "prime": lambda parser: symbol("prime"),
    **{name: _calculus(name) for name in _CALCULUS},
}
