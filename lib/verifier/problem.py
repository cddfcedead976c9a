"""The facts that a problem's text settles: options of a choice, its letters, decimal commas."""

import itertools
import re
from collections.abc import Iterator

from lib.verifier.atoms import parse_number
from lib.verifier.phrases import read
from lib.verifier.tree import (
    Node,
    TooHard,
    Unparsable,
    free_symbols,
    is_name,
    number,
    remembered,
    substituted,
    symbol,
)

Conversion = tuple[str, Node, Node]
"""Name of the rule, reference and answer."""


def conversions(reference: str, answer: str, problem: str) -> Iterator[Conversion]:
    """Yield equivalent forms of two texts that were not equal as they are."""
    expected, actual = read(reference), read(answer)
    if _DECIMAL_COMMA.fullmatch(answer.strip().strip("$")):
        literal = answer.strip().strip("$").replace(",", ".")
        sign, digits = ("-", literal[1:]) if literal.startswith("-") else ("", literal)
        value = parse_number(digits)
        yield (
            "decimal comma",
            expected,
            number(-value.value, f"-{digits}") if sign and value.value else value,
        )
    yield from _choices(expected, actual, problem)
    yield from _renamed(expected, actual, problem)


_DECIMAL_COMMA = re.compile(r"-?\d+,(?:\d{1,2}|\d{4,})")
_OPTION = re.compile(
    r"(?:\\(?:text|textbf|mathrm|mathbf)\s*\{\s*)?(?:\(([A-J])\)"
    r"|(?<![A-Za-z])([A-J])[.)])\s*\}?(?:\\[ ,;]|~|\s|\\q?quad)*"
)


@remembered(512)
def options(problem: str) -> tuple[tuple[str, str], ...]:
    """Return the letters and the texts of the options that a problem lists, at least two from A
    on.
    """
    matches = list(_OPTION.finditer(problem))
    ends = [match.start() for match in matches[1:]] + [len(problem)] * bool(matches)
    listed = [
        (
            match[1] or match[2],
            re.sub(r"(?:\\q?quad|\\\\|[\s,;$])+$", "", problem[match.end() : end]).strip(),
        )
        for match, end in zip(matches, ends, strict=True)
    ]
    letters = "".join(letter for letter, _ in listed)
    return tuple(listed) if len(letters) > 1 and "ABCDEFGHIJ".startswith(letters) else ()


def option_value(text: str) -> Node | None:
    """Parse the text of an option."""
    try:
        return read(text.strip("$. "))
    except (Unparsable, TooHard):
        return None


def _choices(expected: Node, actual: Node, problem: str) -> Iterator[Conversion]:
    """Return the letter of an option for its text, and its text for the letter."""
    listed = dict(options(problem))
    for one, other, is_reference in ((expected, actual, True), (actual, expected, False)):
        letter = _capital(one)
        if letter in listed and not _capital(other) and other.kind != "choice":
            value = option_value(listed[letter])
            if value is not None and list(listed.values()).count(listed[letter]) == 1:
                yield ("option", value, other) if is_reference else ("option", other, value)


def _capital(node: Node) -> str:
    is_letter = node.kind == "symbol" and len(node.name) == 1 and node.name.isupper()
    return node.name if is_letter or (node.kind == "choice" and not node.args) else ""


_MAX_LETTERS = 3
_PARAMETERS = frozenset("kmnjlpqrstabcdCK") | {"lambda", "mu"}


def _renamed(expected: Node, actual: Node, problem: str) -> Iterator[Conversion]:
    """Rename parameters that are not the problem's."""
    mine, theirs = (free_symbols(_defined(node)) for node in (expected, actual))
    own = sorted(name for name in mine - theirs if _is_parameter(name, problem))
    other = sorted(name for name in theirs - mine if _is_parameter(name, problem))
    is_period = all("pi" in str(node) and not problem for node in (expected, actual))
    is_constant = {*own, *other} == {"C", "c"}
    if not (problem or is_period or is_constant) or len(own) != len(other):
        return
    if (
        len(mine - theirs) != len(own)
        or len(theirs - mine) != len(other)
        or not 0 < len(own) <= _MAX_LETTERS
    ):
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
