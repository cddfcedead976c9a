"""The last resort: integrals, limits and infinite sums through sympy, in a process of its own.

`python -m lib.verifier.symbolic` answers questions line by line: a question is a JSON list
`[reference, answer]` of normalized texts, an answer `[equal, step, CPU seconds]`. It imports
neither torch nor transformers, holds its memory to `MEMORY_BYTES`, and ends when its standard
input does. `ask` starts it when first needed, one for each process.

Trees come from this package's parser and become sympy expressions node by node: no text reaches
`sympify`. What sympy leaves unevaluated stays undecided. What is too large is refused by
`is_symbolic_question` before the worker is asked, and before sympy is imported.

Asking is safe under threads (one question at a time), in pools (a forked child forgets its
parent's worker and starts its own; a plain subprocess is allowed where a pool's daemons may have
no children, and imports no script of the caller's) and inside an event loop (it blocks for
`TIMEOUT_S` on a free core). The clock is a backstop: limits on the question refuse first, and
`counters` tells whether they did. It is the worker that counts its own CPU time, so that a busy
machine does not grade differently, and that its signal ends: there is none in this process.
"""

import atexit
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
        result = _integral(*node.args) if node.name == "int" else _limit_or_sum(node)
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


def _limit_or_sum(node: Node) -> Any:
    import sympy

    lower, upper, body = node.args
    if lower.kind != "relation" or len(lower.args) != 2:
        raise Undecided("bounds")
    name, start = map(_convert, lower.args)
    if node.name == "lim" and lower.name == "to":
        side = "+" if start.is_infinite else "+-"
        return sympy.limit(_convert(body), name, start, side)
    if node.name not in ("sum", "prod") or lower.name != "=":
        raise Undecided(node.name)
    index = sympy.Symbol("index", integer=True)
    total = sympy.Sum if node.name == "sum" else sympy.Product
    return total(_convert(body).subs(name, index), (index, start, _convert(upper))).doit()


def _integral(lower: Node, upper: Node, body: Node) -> Any:
    import sympy

    integrand, variable = _without_differential(body)
    if not lower.args and lower.kind == "list":
        raise Undecided("an indefinite integral")
    bounds = (_convert(variable), _convert(lower), _convert(upper))
    return sympy.integrate(_convert(integrand), bounds)


def _without_differential(body: Node) -> tuple[Node, Node]:
    """Return integrand and variable of `f dx`, or of `dx` over something."""
    if body.kind == "quotient":
        above, variable = _without_differential(body.args[0])
        return Node("quotient", (above, body.args[1])), variable
    if body.kind == "product" and body.args[-1].kind == "symbol":
        name = body.args[-1].name
        if len(name) == 2 and name[0] == "d":
            return Node("product", (number(1), *body.args[:-1])), symbol(name[1])
        if body.args[-2] == symbol("d"):
            return Node("product", (number(1), *body.args[:-2])), body.args[-1]
    if body.kind == "symbol" and len(body.name) == 2 and body.name[0] == "d":
        return number(1), symbol(body.name[1])
    raise Undecided("an integral without its variable")


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

    `worker_calls`, `worker_starts`, `timeouts` (worker ended for lateness), `over_budget` (answers
    refused because their batch had spent `BUDGET_S`), `worker_failures` (ended by itself, or did
    not start) and `failures` (answers that met a fault of the verifier and count as wrong).
    """
    return {name: _counts[name] for name in _COUNTERS}


_COUNTERS = (
    *("worker_calls", "worker_starts", "timeouts", "over_budget", "worker_failures", "failures"),
)


def count(name: str) -> None:
    """Add one to the count of `name`."""
    _counts[name] += 1


def reset_counters() -> None:
    """Start counting anew, and forget the answers so far."""
    _counts.clear()
    _worker.spent_s = 0.0
    ask.cache_clear()


def count_answer() -> None:
    """Count one more compared answer; each batch has its own budget."""
    _counts["answers"] += 1
    if _counts["answers"] % BATCH == 0:
        _worker.spent_s = 0.0


class WorkerLostError(RuntimeError):
    """The worker was too late, ended, or may not be asked: no decision, and none to be kept."""


@functools.lru_cache(maxsize=4096)
def ask(reference: str, answer: str) -> tuple[bool, str]:
    """Ask the worker whether two normalized texts are equal; return the decision and its step.

    Raises:
        WorkerLostError: no answer in time; the question may be put again.
    """
    with _worker.lock:
        if _worker.spent_s >= BUDGET_S:
            count("over_budget")
            raise WorkerLostError("over budget")
        count("worker_calls")
        return _worker.ask(json.dumps([reference, answer]) + "\n")


def warm_up() -> None:
    """Start the worker now, without waiting for it."""
    with _worker.lock:
        _worker.start()


class _Worker:
    """The worker of this process, if there is one, and the lock around it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.spent_s = 0.0

    def ask(self, question: str) -> tuple[bool, str]:
        """Ask one question; a worker that fails is replaced for the next."""
        process = self.start()
        assert process.stdin is not None and process.stdout is not None
        backstop = threading.Timer(PATIENCE_S, process.kill)
        backstop.start()
        try:
            process.stdin.write(question.encode())
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        finally:
            backstop.cancel()
        if line.endswith(b"\n"):
            equal, step, spent_s = json.loads(line)
            self.spent_s += spent_s
            return bool(equal), str(step)
        self.spent_s += TIMEOUT_S
        late = process.wait() in (-signal.SIGPROF, -signal.SIGKILL)
        count("timeouts" if late else "worker_failures")
        self.start()
        raise WorkerLostError("timeout" if late else "worker failure")

    def start(self) -> subprocess.Popen[bytes]:
        """Return the worker, started if there is none."""
        if self.process is None or self.process.poll() is not None:
            self.stop()
            count("worker_starts")
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lib.verifier.symbolic", str(TIMEOUT_S)],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self.process

    def stop(self) -> None:
        """Kill the worker, if there is one, and close its pipes."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.communicate()


_worker = _Worker()
_inherited: list[_Worker] = []


def _forget() -> None:
    """Forget the parent's worker in a forked child: it is not the child's to ask or stop."""
    global _worker
    _inherited.append(_worker)
    _worker = _Worker()
    ask.cache_clear()


os.register_at_fork(after_in_child=_forget)
atexit.register(lambda: _worker.stop())


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
