"""The last resort: integrals, limits and infinite sums through sympy, in a process of its own.

`python -m lib.verifier.symbolic` answers questions line by line: a question is a JSON list
`[reference, answer]` of texts, an answer `[equal, step, CPU seconds]`. It imports neither torch nor
transformers, holds its memory to `MEMORY_BYTES`, and ends when its standard input does. `ask`
starts one for each process that asks: threads take turns, and a forked child has its own.

Trees come from this package's parser and become sympy expressions node by node: no text reaches
`sympify`. What sympy leaves unevaluated stays undecided. What is too large is refused by
`is_symbolic_question` before sympy is asked. The clock is a backstop, and `counters` tells whether
it was needed: the worker counts its own CPU time, so that a busy machine does not grade
differently, and its signal ends it: there is none in this process.
"""

import collections
import functools
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from lib.verifier.phrases import read
from lib.verifier.tree import (
    MAX_CALCULUS,
    MAX_INTEGRAND_NESTING,
    MAX_SYMBOLIC_EXPONENT,
    MAX_SYMBOLIC_NODES,
    Node,
    TooHard,
    Undecided,
    Unparsable,
    free_symbols,
    names,
    nodes,
    number,
    pairs,
    symbol,
)

MEMORY_BYTES = 512 * 1024 * 1024
"""Address space; what needs more ends in a MemoryError, which counts as undecided."""

_SCALARS = names(
    "number symbol sum product quotient power root call factorial calculus relation list"
)
_JUMPING = names("floor ceil sgn max min mod")
_FUNCTIONS = pairs(
    "sin=sin cos=cos tan=tan cot=cot sec=sec csc=csc sinh=sinh cosh=cosh tanh=tanh arcsin=asin "
    "arccos=acos arctan=atan ln=log log=log exp=exp abs=Abs "
    "binomial=binomial Gamma=gamma erf=erf sum=Add product=Mul power=Pow factorial=factorial"
)
_CONSTANTS = pairs("pi=pi e=E i=I infinity=oo")


def is_symbolic_question(*trees: Node) -> bool:
    """Return True if sympy could decide: scalars with calculus in them, within the limits."""
    parts = [part for tree in trees for part in nodes(tree)]
    calculus = [part for part in parts if part.kind == "calculus"]
    return (
        0 < len(calculus) <= MAX_CALCULUS
        and len(parts) <= MAX_SYMBOLIC_NODES
        and {part.kind for part in parts} <= _SCALARS
        and not any(part.kind == "power" and _is_hard_power(*part.args) for part in parts)
        and all(nesting(part.args[-1]) <= MAX_INTEGRAND_NESTING for part in calculus)
        and not {part.name for part in parts} & _JUMPING
    )


def _is_hard_power(base: Node, exponent: Node) -> bool:
    """Return True for symbols in both base and exponent, or a large exponent."""
    values = [part.value for part in nodes(exponent) if part.value]
    is_large = any(abs(value) > MAX_SYMBOLIC_EXPONENT for value in values)
    return is_large or all(free_symbols(part) - {"infinity"} for part in (base, exponent))


def _is_exponential(node: Node) -> bool:
    return node.kind == "power" and node.args[1].kind not in ("number", "quotient")


def nesting(node: Node) -> int:
    """Return the depth of functions, roots and exponentials inside one another."""
    inside = max(map(nesting, node.args), default=0)
    return inside + (node.kind in ("call", "root") or _is_exponential(node))


def same_symbolic(reference: Node, answer: Node) -> bool:
    """Return True if two expressions with integrals, limits or sums are equal.

    Raises:
        Undecided: sympy finds no closed form, or cannot tell.
    """
    verdict = _convert(reference).equals(_convert(answer))
    if verdict is None:
        raise Undecided("neither equal nor different")
    return bool(verdict)


def _convert(node: Node) -> Any:
    """Return a sympy expression."""
    import sympy

    if node.kind == "number" and node.value is not None:
        return sympy.Rational(node.value.numerator, node.value.denominator)
    if node.kind == "symbol" and "_index" in node.name:
        raise Undecided("a term that depends on the index")
    if node.kind == "symbol":
        constant = _CONSTANTS.get(node.name)
        return getattr(sympy, constant) if constant else sympy.Symbol(node.name, real=True)
    if node.kind == "calculus":
        result = _calculus(node.name, *node.args)
        if result.has(sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit):
            raise Undecided("no closed form")
        return result
    parts = [_convert(part) for part in node.args]
    if node.kind == "quotient":
        return parts[0] / parts[1]
    if node.kind == "root":
        return parts[1] ** (1 / parts[0])
    function = _FUNCTIONS.get(node.name if node.kind == "call" else node.kind)
    if function is None:
        raise Undecided(f"no symbolic {node.kind}")
    return getattr(sympy, function)(*parts)


def _calculus(name: str, lower: Node, upper: Node, body: Node) -> Any:
    """Return an integral, limit, sum or product as sympy evaluates it."""
    import sympy

    if name == "int":
        integrand, variable = _without_differential(body)
        if lower == upper == Node("list"):
            raise Undecided("an indefinite integral")
        return sympy.integrate(
            _convert(integrand), (_convert(variable), _convert(lower), _convert(upper))
        )
    if lower.kind != "relation" or len(lower.args) != 2:
        raise Undecided("bounds")
    letter, start = map(_convert, lower.args)
    if (name, lower.name) == ("lim", "to"):
        side = "+" if start.is_infinite else "+-"
        return sympy.limit(_convert(body), letter, start, side)
    if name not in ("sum", "prod") or lower.name != "=":
        raise Undecided(name)
    index = sympy.Symbol("index", integer=True)
    total = sympy.Sum if name == "sum" else sympy.Product
    return total(_convert(body).subs(letter, index), (index, start, _convert(upper))).doit()


def _without_differential(body: Node) -> tuple[Node, Node]:
    """Return integrand and variable of `f dx`, or of `dx` over something."""
    if body.kind == "quotient":
        above, variable = _without_differential(body.args[0])
        return Node("quotient", (above, body.args[1])), variable
    *factors, last = body.args if body.kind == "product" else (body,)
    if last.kind == "symbol" and len(last.name) == 2 and last.name[0] == "d":
        last = symbol(last.name[1])
    elif not factors or factors.pop() != symbol("d"):
        raise Undecided("an integral without its variable")
    return Node("product", (number(1), *factors)), last


def decide(reference: str, answer: str) -> tuple[bool, str]:
    """Return True if the two are equal, and how that was decided."""
    try:
        return same_symbolic(read(reference), read(answer)), "symbolic"
    except (Undecided, Unparsable, TooHard):
        return False, "undecided"
    except _SYMPY_FAILS:
        return False, "symbolic failure"


_SYMPY_FAILS = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, NotImplementedError),
    *(RecursionError, TypeError, ValueError),
)


TIMEOUT_S = 0.6
"""CPU time of one question; a worker that needs more ends itself and is replaced."""

PATIENCE_S = 30.0
"""Wall time of one question, and of the worker's start, on a machine that gives it no core."""

BATCH = 1_000
BUDGET_S = 60.0
"""CPU time of all questions in a batch of so many answers; further questions are refused."""

_ROOT = Path(__file__).resolve().parents[2]
_counts: collections.Counter[str] = collections.Counter()


def counters() -> dict[str, int]:
    """Return this process's counts of questions, for provenance.

    `worker_calls`, `timeouts` (processes ended for lateness), `over_budget` (answers refused
    because their batch had spent `BUDGET_S`), `worker_failures` (ended by itself) and `failures`
    (answers that met a fault of the verifier and count as wrong).
    """
    names = ("worker_calls", "timeouts", "over_budget", "worker_failures", "failures")
    return {name: _counts[name] for name in names}


def count(name: str) -> None:
    """Add one to the count of `name`; each batch of answers has its own budget."""
    _counts[name] += 1
    if name == "answers" and _counts[name] % BATCH == 0:
        _counts["spent_ms"] = 0


def reset_counters() -> None:
    """Start counting anew, and forget the answers so far."""
    _counts.clear()
    ask.cache_clear()


class WorkerLostError(RuntimeError):
    """The process was too late, ended, or may not be asked: no decision, and none to be kept."""


@functools.lru_cache(maxsize=4096)
def ask(reference: str, answer: str) -> tuple[bool, str]:
    """Ask sympy whether two texts are equal; return the decision and its step.

    Raises:
        WorkerLostError: no answer in time; the question may be put again.
    """
    with _lock_of(os.getpid()):
        if _counts["spent_ms"] >= 1000 * BUDGET_S:
            count("over_budget")
            raise WorkerLostError("over budget")
        count("worker_calls")
        worker = _started()
        assert worker.stdin is not None and worker.stdout is not None
        backstop = threading.Timer(PATIENCE_S, worker.kill)
        backstop.start()
        try:
            worker.stdin.write(f"{json.dumps([reference, answer])}\n".encode())
            worker.stdin.flush()
            line = worker.stdout.readline()
        except BrokenPipeError:
            line = b""
        finally:
            backstop.cancel()
        if line.endswith(b"\n"):
            equal, step, spent_s = json.loads(line)
            _counts["spent_ms"] += int(1000 * spent_s)
            return equal, step
        _counts["spent_ms"] += int(1000 * TIMEOUT_S)
        late = worker.wait() in (-signal.SIGPROF, -signal.SIGKILL)
        count("timeouts" if late else "worker_failures")
        raise WorkerLostError("timeout" if late else "worker failure")


_lock_of = functools.cache(lambda pid: threading.Lock())
"""Of each process: a forked child may inherit one that a thread of its parent holds."""
_workers: dict[int, subprocess.Popen[bytes]] = {}


def _started() -> subprocess.Popen[bytes]:
    """Return the worker of this process, another one where it ended."""
    worker = _workers.get(os.getpid())
    if worker is not None and worker.poll() is not None:
        worker.communicate()
        worker = None
    if worker is None:
        worker = _workers[os.getpid()] = subprocess.Popen(
            [sys.executable, "-m", "lib.verifier.symbolic", str(TIMEOUT_S)],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    return worker


def main() -> None:
    """Answer until the input ends; SIGPROF ends a question that takes too much CPU time."""
    import sympy  # noqa: F401  loaded before the first question is timed

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for line in sys.stdin:
        start = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, float(sys.argv[1]))
        answer = decide(*json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps([*answer, time.process_time() - start]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
