"""What may be put to the symbolic worker: limits on the tree, checked before it is asked.

Without sympy, so that a refusal costs nothing and no worker is started for it.
"""

from lib.verifier.evaluate import free_symbols
from lib.verifier.limits import (
    MAX_CALCULUS,
    MAX_INTEGRAND_NESTING,
    MAX_SYMBOLIC_EXPONENT,
    MAX_SYMBOLIC_NODES,
)
from lib.verifier.tree import Node, TooHard

_SCALARS = frozenset([
    "number", "symbol", "sum", "product", "quotient", "power", "root", "call", "factorial",
    "calculus", "relation", "list",
])  # fmt: skip
_ROUNDING = frozenset(["abs", "floor", "ceil", "sgn", "max", "min", "mod"])


def is_symbolic_question(*nodes: Node) -> bool:
    """Whether sympy could decide: scalars with calculus in them.

    Raises:
        TooHard: beyond the limits.
    """
    calculus = sum(map(_count_calculus, nodes))
    if calculus > MAX_CALCULUS:
        raise TooHard(f"more than {MAX_CALCULUS} sums, limits and integrals")
    if not calculus:
        return False
    for node in nodes:
        if _size(node) > MAX_SYMBOLIC_NODES:
            raise TooHard(f"more than {MAX_SYMBOLIC_NODES} nodes")
        if not _allowed(node):
            return False
    return True


def _has_calculus(node: Node) -> bool:
    return _count_calculus(node) > 0


def _count_calculus(node: Node) -> int:
    return (node.kind == "calculus") + sum(map(_count_calculus, node.args))


def _size(node: Node) -> int:
    return 1 + sum(map(_size, node.args))


def _allowed(node: Node) -> bool:
    """Whether all kinds of node are known to sympy's side; the rest within the limits."""
    if node.kind == "power":
        _check_power(*node.args)
    if node.kind == "factorial" and _exceeds(node.args[0]):
        raise TooHard("factorial")
    if node.kind == "calculus":
        _check_calculus(*node.args)
    return node.kind in _SCALARS and all(map(_allowed, node.args))


def _check_calculus(lower: Node, upper: Node, body: Node) -> None:
    if _has_calculus(lower) or _has_calculus(upper) or nesting(lower) or nesting(upper):
        raise TooHard("bounds that are no plain numbers")
    if _names(body) & _ROUNDING:
        raise TooHard("a sum, limit or integral of what jumps")
    if nesting(body) > MAX_INTEGRAND_NESTING or "infinity" in _names(body):
        raise TooHard("functions of functions, or infinity, under a sum, limit or integral")


def _names(node: Node) -> set[str]:
    return {node.name}.union(*map(_names, node.args))


def _check_power(base: Node, exponent: Node) -> None:
    if free_symbols(base) - {"infinity"} and free_symbols(exponent) - {"infinity"}:
        raise TooHard("symbols in base and exponent")
    if _exceeds(exponent) or _has_power(exponent):
        raise TooHard("exponent")


def _exceeds(node: Node) -> bool:
    """Whether a number beyond the limit stands anywhere in `node`."""
    if node.kind == "number" and node.value is not None:
        return abs(node.value) > MAX_SYMBOLIC_EXPONENT
    return any(map(_exceeds, node.args))


def _has_power(node: Node) -> bool:
    """Whether `node` holds a power of a power or of something that is no small number."""
    deep = node.kind == "power" and node.args[1].kind not in ("number", "quotient")
    return deep or node.kind in ("factorial", "calculus") or any(map(_has_power, node.args))


def nesting(node: Node) -> int:
    """How deep functions, roots and exponentials stand inside one another."""
    inside = max(map(nesting, node.args), default=0)
    exponential = node.kind == "power" and node.args[1].kind not in ("number", "quotient")
    return inside + (node.kind in ("call", "root") or exponential)
