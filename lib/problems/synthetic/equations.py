"""Chains of small whole-number equations: what a generated problem asks to be worked out."""

import dataclasses
import random
import re
from collections.abc import Callable

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left // right,
}

_WRITTEN = re.compile(r"(\d{1,9}) ?([-+*/]) ?(\d{1,9}) ?= ?(\d{1,9})(?!\d)")


@dataclasses.dataclass(frozen=True)
class Equation:
    """`left operation right`; a quotient is whole by construction."""

    left: int
    operation: str
    right: int

    @property
    def value(self) -> int:
        return OPERATIONS[self.operation](self.left, self.right)

    def __str__(self) -> str:
        return f"{self.left} {self.operation} {self.right} = {self.value}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """How large numbers may get.

    Attributes:
        max_value: largest value that any equation comes to.
        max_operand: largest number that is started from, added or taken away.
        max_factor: largest factor and divisor.
    """

    max_value: int
    max_operand: int
    max_factor: int

    def __post_init__(self) -> None:
        if self.max_factor < 2 or self.max_operand < 2 or self.max_value < self.max_operand:
            raise ValueError(f"need 2 <= max_factor and 2 <= max_operand <= max_value, got {self}")


def draw_chain(draws: random.Random, *, num_steps: int, bounds: Bounds) -> tuple[Equation, ...]:
    """Equations each of which goes on from the value of the one before.

    Every value on the way is at least 1, the last one at least 0. Each operation that is possible
    at a step is equally likely there, then each operand that it admits.
    """
    chain: list[Equation] = []
    value = draws.randint(2, bounds.max_operand)
    for step in range(num_steps):
        operands = _operands(value, bounds=bounds, may_end_at_zero=step == num_steps - 1)
        operation = draws.choice(sorted(name for name in operands if operands[name]))
        chain.append(Equation(value, operation, draws.choice(operands[operation])))
        value = chain[-1].value
    return tuple(chain)


def _operands(value: int, *, bounds: Bounds, may_end_at_zero: bool) -> dict[str, list[int]]:
    """For each operation, the right-hand sides that keep to the bounds."""
    most_added = min(bounds.max_operand, bounds.max_value - value)
    most_taken = min(bounds.max_operand, value if may_end_at_zero else value - 1)
    factors = range(2, bounds.max_factor + 1)
    return {
        "+": list(range(1, most_added + 1)),
        "-": list(range(1, most_taken + 1)),
        "*": [factor for factor in factors if value * factor <= bounds.max_value],
        "/": [factor for factor in factors if value % factor == 0],
    }


def written_equations(working: str) -> tuple[str, ...]:
    """The equations written in `working`, in order and evenly spaced, right or wrong.

    For a generated solution this is its equation sequence; for a completion, its working steps.
    """
    return tuple(
        f"{left} {operation} {right} = {value}"
        for left, operation, right, value in _WRITTEN.findall(working)
    )
