"""A tool inside a completion (`prompt.tool`): the policy writes a call, the engine its result.

    Greta has <calc>12 * 7</calc>=84 marbles.

`=84` is *forced*: its tokens are read by the policy, but sampled by nobody, so that no loss,
entropy or KL counts them.
"""

import dataclasses
import re
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction

from lib.core.errors import UserError
from lib.core.plugins import guarded, is_plugin, load_plugin

WRONG = "=?"
"""Result of a call that the tool cannot run."""

MAX_CHARS = 50
"""Longest call of the calculator."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tool:
    """A function that a completion can call.

    Attributes:
        open, close: the tags around a call; each is one token of a tiny model.
        run: maps the text of a call to its result, which is appended after `close`. A ValueError is
            a wrong call.
        max_calls: calls of one completion; further ones are wrong.
        timeout_s: longest time of a call; a longer one is wrong. 0 for no limit.
    """

    open: str
    close: str
    run: Callable[[str], str]
    max_calls: int = 16
    timeout_s: float = 1.0

    def result(self, text: str, *, name: str) -> str:
        """Return the result of the call that a completion has just closed; never ''.

        Args:
            text: the completion so far. The call begins at its last opening tag.
            name: of the tool in params, for an error of a plugin.
        """
        before, _, _ = text.rpartition(self.close)
        _, opening, call = before.rpartition(self.open)
        if not opening or self.close in call or text.count(self.close) > self.max_calls:
            return WRONG
        results: list[str | UserError] = []

        def run() -> None:
            try:
                with guarded(name, inputs=repr(call)):
                    try:
                        result = self.run(call)
                    except ValueError:
                        result = WRONG
                    if not isinstance(result, str):
                        raise TypeError(f"a result is text, not {result!r}")
                    results.append(result)
            except UserError as fault:
                results.append(fault)

        if self.timeout_s:
            # A thread cannot be ended: a call that never returns stays behind until the process
            # ends, which does not wait for a daemon.
            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            thread.join(self.timeout_s)
        else:
            run()
        result = results[0] if results else WRONG
        if isinstance(result, UserError):
            raise result
        return result or WRONG


_SYMBOL = re.compile(r"\s*(\d*\.\d+|\d+|[-+*/()])")


def calculate(text: str) -> str:
    """Compute an expression exactly: "12 * 7" -> "=84", "5 / 2" -> "=2.5", "1 / 3" -> "=1/3".

    sum = product {("+" | "-") product}, product = factor {("*" | "/") factor},
    factor = number | "-" factor | "(" sum ")".

    Raises:
        ValueError: not of this grammar, longer than `MAX_CHARS`, or divided by 0.
    """
    symbols = _SYMBOL.findall(text)
    # What the pattern does not match is left over; `isascii` refuses the digits of other scripts.
    if len(text) > MAX_CHARS or not text.isascii() or _SYMBOL.sub("", text).strip():
        raise ValueError(text)
    symbols.append("")

    def chain(operators: str, operand: Callable[[], Fraction]) -> Fraction:
        value = operand()
        while symbols[0] and symbols[0] in operators:
            operator, right = symbols.pop(0), operand()
            if operator == "/" and not right:
                raise ValueError(text)
            match operator:
                case "+":
                    value += right
                case "-":
                    value -= right
                case "*":
                    value *= right
                case "/":
                    value /= right
        return value

    def total() -> Fraction:
        return chain("+-", lambda: chain("*/", factor))

    def factor() -> Fraction:
        symbol = symbols.pop(0)
        if symbol == "-":
            return -factor()
        if symbol == "(":
            value = total()
            if symbols.pop(0) != ")":
                raise ValueError(text)
            return value
        # An operator or the end is no number: `Fraction` raises ValueError.
        return Fraction(symbol)

    value = total()
    if symbols != [""]:
        raise ValueError(text)
    return f"={_written(value)}"


def _written(value: Fraction) -> str:
    """Write a number: whole, as a finite decimal, or else as a fraction."""
    rest, places = value.denominator, 0
    for prime in (2, 5):
        power = 0
        while rest % prime == 0:
            rest, power = rest // prime, power + 1
        places = max(places, power)
    if rest > 1 or not places:
        return str(value)
    digits = f"{abs(value.numerator) * 10**places // value.denominator:0{places + 1}d}"
    return f"{'-' * (value < 0)}{digits[:-places]}.{digits[-places:]}"


CALCULATOR = "calculator"

TOOLS = {
    # Bounded by its grammar, without a time limit.
    CALCULATOR: Tool(open="<calc>", close="</calc>", run=calculate, timeout_s=0)
}

# An expression, perhaps with `x` for times, dollars and thousands, and its value. A comma or a full
# stop only within a number.
_EQUATION = re.compile(
    r"(?<![\w.)$])(\$?)((?:[\d(]|\.(?=\d))(?:[-+*/x× ()$\d]|\.(?=\d)|,(?=\d{3})){0,99}) ?= ?"
    r"\$?(-?(?:\d+(?:,\d{3})*)?(?:\.\d+)?)(?![\d/%])"
)
_PLAIN = {ord(","): None, ord("$"): None, ord("x"): "*", ord("×"): "*"}


def with_calls(solution: str) -> str:
    """Turn the equations of a solution that the calculator confirms into calls.

    "5 + 7 = 12" -> "<calc>5 + 7</calc>=12"; GSM8K's "5 x $6=$30" -> "<calc>5 * 6</calc>=30". A
    solution with calls of its own stays as it is.
    """
    tool = TOOLS[CALCULATOR]
    if tool.close in solution:
        return solution

    num_calls = 0

    def call(match: re.Match[str]) -> str:
        nonlocal num_calls
        dollar, expression, value = match[1], match[2].translate(_PLAIN).strip(), match[3]
        try:
            result, expected = calculate(expression), calculate(value.translate(_PLAIN))
        except ValueError:
            return match[0]
        # A bare number is no call; a call beyond the limit would be a wrong one.
        confirmed = result == expected and re.search(r"[-+*/]", expression)
        if not confirmed or num_calls == tool.max_calls:
            return match[0]
        num_calls += 1
        return f"{dollar}{tool.open}{expression}{tool.close}{result}"

    return _EQUATION.sub(call, solution)


def find_tool(name: str) -> Tool | None:
    """Return the tool of `prompt.tool`: built in, or `plugins/tools/file.py:name`; None for ''.

    Raises:
        UserError: no such tool, or the plugin is none.
    """
    if not name:
        return None
    tool = load_plugin(name) if is_plugin(name, role="tools") else TOOLS.get(name)
    if not (isinstance(tool, Tool) and tool.open and tool.close and tool.open != tool.close):
        raise UserError(
            f"prompt.tool: {name} is no Tool with two different tags; there is {', '.join(TOOLS)}"
        )
    return tool


def tool_tags(name: str) -> tuple[str, ...]:
    """Return the tags around a call, which a tokenizer made or extended here keeps whole."""
    tool = find_tool(name)
    return (tool.open, tool.close) if tool else ()


def spans(text: str, name: str) -> Iterator[tuple[str, bool]]:
    """Cut a completion into spans, each with True if the policy writes it, False if it is forced.

    "<calc>2 + 3</calc>=5 in all" -> ("<calc>2 + 3</calc>", True), ("=5", False), (" in all", True).

    Raises:
        UserError: the text has another result of a call than the tool.
    """
    tool = find_tool(name)
    start = 0
    while tool and (end := text.find(tool.close, start)) >= 0:
        end += len(tool.close)
        result = tool.result(text[:end], name=name)
        if not text.startswith(result, end):
            raise UserError(
                f"prompt.tool: a solution has the call {text[start:end][-80:]!r}, followed by "
                f"{text[end:][:20]!r}; expected {result!r}, which {name} gives"
            )
        yield text[start:end], True
        yield result, False
        start = end + len(result)
    if start < len(text):
        yield text[start:], True


def num_calls(text: str, name: str) -> tuple[int, int]:
    """Return how many calls a completion has, and how many of them are wrong."""
    tool = find_tool(name)
    return (text.count(tool.close), text.count(tool.close + WRONG)) if tool else (0, 0)
