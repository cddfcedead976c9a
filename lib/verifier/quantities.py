"""Numbers with something to them: units, angles, percentages, bases, ratios."""

from collections.abc import Callable

from lib.verifier import units
from lib.verifier.scalars import same_scalar
from lib.verifier.tree import Node, number

Same = Callable[[Node, Node], tuple[bool, str]]
"""The comparison of parts, `lib.verifier.structure.same`."""


def same_with_unit(reference: Node, answer: Node, same: Same) -> tuple[bool, str]:
    """Equal numbers, units convertible where both are known; a unit that only one has is free."""
    right, given = _unit(reference), _unit(answer)
    inner, outer = _bare(reference, answer.name), _bare(answer, reference.name)
    if right and given:
        if right.dimension != given.dimension:
            return False, "units"
        if right.factor != given.factor:
            outer = Node("product", (outer, number(given.factor / right.factor)))
    return same(inner, outer)


def _unit(node: Node) -> units.Unit | None:
    return units.parse_unit(node.name) if node.kind == "unit" else None


def _bare(node: Node, unit: str) -> Node:
    """`node` without its unit, marked as one or only written like `unit`."""
    if node.kind == "unit":
        return node.args[0]
    if node.kind == "product" and node.args[-1] == Node("symbol", (), unit):
        return node.args[0] if len(node.args) == 2 else node._replace(args=node.args[:-1])
    return node


def same_angle(reference: Node, answer: Node, same: Same) -> tuple[bool, str]:
    """Degrees against degrees or bare numbers; against an expression with π also in radians."""
    inner = reference.args[0] if reference.kind == "degree" else reference
    outer = answer.args[0] if answer.kind == "degree" else answer
    equal, step = same(inner, outer)
    if equal or reference.kind == answer.kind:
        return equal, step
    return same_scalar(reference, answer) if _mentions_pi(inner, outer) else (False, step)


def _mentions_pi(*nodes: Node) -> bool:
    return any(node == Node("symbol", (), "pi") or _mentions_pi(*node.args) for node in nodes)


def same_percent(reference: Node, answer: Node, same: Same) -> tuple[bool, str]:
    """`10 %` is both 10 and 0.1; of two percentages the numbers count."""
    if reference.kind == answer.kind:
        return same(reference.args[0], answer.args[0])
    percentage, other = (reference, answer) if reference.kind == "percent" else (answer, reference)
    for value in (percentage.args[0], Node("quotient", (percentage.args[0], number(100)))):
        pair = (value, other) if percentage is reference else (other, value)
        if same(*pair)[0]:
            return True, "percent"
    return False, "percent"


def same_base(reference: Node, answer: Node) -> bool:
    """Same digits in the same base; base ten may go unsaid."""
    right, given = _digits(reference), _digits(answer)
    return right is not None and right == given


def _digits(node: Node) -> tuple[str, int] | None:
    if node.kind == "base":
        return node.name.lstrip("0"), int(node.value or 0)
    return (node.name.lstrip("0"), 10) if node.kind == "number" else None


def same_ratio(reference: Node, answer: Node, same: Same) -> tuple[bool, str]:
    """Proportional terms; a ratio of two is also the fraction."""
    right, given = _terms(reference), _terms(answer)
    if len(right) == len(given) == 1:
        return same_scalar(reference, answer)
    if len(right) != len(given):
        if len(right) == 2 and len(given) == 1:
            return same(Node("quotient", tuple(right)), given[0])
        return (False, "ratio") if len(right) > 1 else same_ratio(answer, reference, same)
    crossed = (
        same_scalar(Node("product", (right[0], two)), Node("product", (given[0], one)))[0]
        for one, two in zip(right[1:], given[1:], strict=True)
    )
    return all(crossed), "ratio"


def _terms(node: Node) -> list[Node]:
    if node.kind != "ratio":
        return [node]
    return [*_terms(node.args[0]), node.args[1]]
