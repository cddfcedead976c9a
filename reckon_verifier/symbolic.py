"""Compare integrals, limits, sums and products with sympy, in a worker process: the last resort.

The worker, `python -m reckon_verifier.symbolic`, answers questions line by line. A question is a
JSON
list `[reference, answer]` of texts, an answer is `[equal, step, CPU seconds]`. The worker imports
neither torch nor transformers, uses at most `MEMORY_BYTES`, and ends when its standard input ends.
`ask` starts one worker for each process that asks: the threads of a process take turns, and a
forked child starts its own.

Trees come from this package's parser and become sympy expressions node by node: no text reaches
`sympify`, which would execute it. If sympy leaves an expression unevaluated, the question stays
undecided. `is_symbolic_question` refuses large questions before sympy is asked. A limit of CPU time
is the last safeguard, and `counters` reports whether it was needed. The worker measures its own CPU
time, so that a busy machine does not grade differently. The signal at the limit ends the worker;
the process that asks sets no signal.
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

from reckon_verifier.phrases import read
from reckon_verifier.tree import (
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
"""Address space of the worker; a question that needs more raises MemoryError, and is not equal."""

# Relations and lists are bounds: `k = 1`, and an empty list for a missing one.
_SCALARS = names(
    "number symbol sum product quotient power root call factorial calculus relation list"
)
_JUMPING = names("floor ceil sgn max min")
_FUNCTIONS = pairs(
    "sin=sin cos=cos tan=tan cot=cot sec=sec csc=csc sinh=sinh cosh=cosh tanh=tanh arcsin=asin "
    "arccos=acos arctan=atan ln=log log=log exp=exp abs=Abs "
    "binomial=binomial Gamma=gamma erf=erf sum=Add product=Mul quotient=Mul power=Pow "
    "factorial=factorial"
)
_CONSTANTS = pairs("pi=pi e=E i=I infinity=oo")


def is_symbolic_question(*trees: Node) -> bool:
    r"""Return True if sympy may be asked: scalars or equations with calculus, within limits.

    True for `\int_0^1 x^3 dx` and `1/4`. Functions of `_JUMPING`, such as floor, are refused.
    """
    parts = [part for tree in trees for part in nodes(tree)]
    calculus = [part for part in parts if part.kind == "calculus"]
    return (
        0 < len(calculus) <= MAX_CALCULUS
        and len(parts) <= MAX_SYMBOLIC_NODES
        and {part.kind for part in parts} <= _SCALARS
        and not any(part.kind == "power" and _is_hard_power(*part.args) for part in parts)
        # The last argument is the body, such as the integrand; sin(√x) is nested twice.
        and all(nesting(part.args[-1]) <= MAX_INTEGRAND_NESTING for part in calculus)
        and not {part.name for part in parts} & _JUMPING
    )


def _is_hard_power(base: Node, exponent: Node) -> bool:
    """Return True if both base and exponent have symbols (x^n), or the exponent is large."""
    values = [part.value for part in nodes(exponent) if part.value]
    is_large = any(abs(value) > MAX_SYMBOLIC_EXPONENT for value in values)
    # Infinity counts as a symbol in `free_symbols`, but is none here.
    return is_large or all(free_symbols(part) - {"infinity"} for part in (base, exponent))


def _is_exponential(node: Node) -> bool:
    """Return True for a power whose exponent is no number or fraction: e^x, not x^2."""
    return node.kind == "power" and node.args[1].kind not in ("number", "quotient")


def nesting(node: Node) -> int:
    """Return the largest number of nested functions, roots and exponentials: sin(√x) has 2."""
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
    """Return `node` as a sympy expression, with integrals, limits and sums evaluated.

    Raises:
        Undecided: sympy has no such expression, or finds no closed form of it.
    """
    import sympy

    if node.kind == "number" and node.value is not None:
        return sympy.Rational(node.value.numerator, node.value.denominator)
    if node.kind == "symbol" and "_" in node.name:
        # a_k is another number for each k, but a sympy symbol would be the same for all.
        raise Undecided("a term that depends on the index")
    if node.kind == "symbol":
        constant = _CONSTANTS.get(node.name)
        return getattr(sympy, constant) if constant else sympy.Symbol(node.name, real=True)
    if node.kind == "calculus":
        result = _calculus(node.name, *node.args)
        # sympy leaves what it cannot evaluate as an Integral, Sum and so on.
        unevaluated = (sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit)
        # The limit of sin x at ∞ is an AccumBounds, the interval of its values.
        if result.has(*unevaluated, sympy.AccumBounds):
            raise Undecided("no closed form")
        return result
    parts = [_convert(part) for part in node.args]
    if node.kind == "quotient":
        parts[1] = 1 / parts[1]
    if node.kind == "root":
        index, radicand = parts
        if index != 2:
            # sympy's cube root of -8 is not real.
            raise Undecided("a root of another index")
        return sympy.sqrt(radicand)
    function = _FUNCTIONS.get(node.name if node.kind == "call" else node.kind)
    if function is None:
        raise Undecided(f"no symbolic {node.kind}")
    # sympy has a value for 0^0, ∞^0 and x^0; `is_nonzero` is True only for a number that is
    # certainly not 0.
    if function == "Pow" and parts[1].is_zero and not parts[0].is_nonzero:
        raise Undecided("0^0")
    value = getattr(sympy, function)(*parts)
    # nan is the value of ∞ − ∞, zoo that of 1/0: sympy would compare them with anything.
    if value.has(sympy.nan, sympy.zoo):
        raise Undecided("no value, such as ∞ - ∞")
    return value


def _calculus(name: str, lower: Node, upper: Node, body: Node) -> Any:
    r"""Return the value of an integral, limit, sum or product, a sympy expression.

    Args:
        name: "int", "lim", "sum" or "prod".
        lower: lower bound of an integral, or a relation: `k = 1` of a sum, `x \to 0` of a limit.
        upper: upper bound. A missing bound is an empty list node.
        body: integrand with its differential, summand, or function.

    Raises:
        Undecided: a bound is missing or of another form.
    """
    import sympy

    if name == "int":
        # A pole between letters is not seen.
        if (free_symbols(lower) | free_symbols(upper)) - {"infinity"}:
            raise Undecided("bounds with letters")
        integrand, variable = _without_differential(body)
        return sympy.integrate(
            _convert(integrand), (_convert(variable), _convert(lower), _convert(upper))
        )
    if lower.kind != "relation" or len(lower.args) != 2:
        raise Undecided("bounds")
    letter, start = map(_convert, lower.args)
    if (name, lower.name) == ("lim", "to"):
        # "+-" is the two-sided limit, which must be the same from both sides; ∞ has one side.
        side = "+" if start.is_infinite else "+-"
        return sympy.limit(_convert(body), letter, start, side)
    if name not in ("sum", "prod") or lower.name != "=":
        raise Undecided(name)
    top = _convert(upper)
    # By the usual convention a sum from 3 to 1 is empty, but not sympy's.
    if (top - start).is_negative or any(
        bound.is_finite and bound.is_integer is False for bound in (start, top)
    ):
        raise Undecided("bounds that fall, or between integers")
    # An index is an integer, but `_convert` makes every symbol a real: replace it.
    index = sympy.Symbol("index", integer=True)
    total = sympy.Sum if name == "sum" else sympy.Product
    return total(_convert(body).subs(letter, index), (index, start, top)).doit()


def _without_differential(body: Node) -> tuple[Node, Node]:
    """Return (integrand, variable) of an integral's body: `x^3 dx` -> (1 · x^3, x).

    Raises:
        Undecided: there is no differential at the end.
    """
    *factors, last = body.args if body.kind == "product" else (body,)
    if last.kind == "symbol" and len(last.name) == 2 and last.name[0] == "d":
        last = symbol(last.name[1])
    elif not factors or factors.pop() != symbol("d"):
        raise Undecided("an integral without its variable")
    # The 1 is the integrand of `dx` by itself.
    return Node("product", (number(1), *factors)), last


def decide(reference: str, answer: str) -> tuple[bool, str]:
    """Return (equal, step) for two texts; called in the worker.

    The step is "symbolic" if sympy decides. Else equal is False: "undecided" if it cannot tell,
    "symbolic failure" if it raises one of `_SYMPY_FAILS`.
    """
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
"""Limit of CPU time for one question: its signal ends the worker, which is then replaced."""

PATIENCE_S = 30.0
"""Limit of wall time for one question and the worker's start, a backstop on a very busy machine."""

BATCH = 1_000
"""Number of answers that share one budget of CPU time."""
BUDGET_S = 60.0
"""Limit of CPU time for all questions about one batch of answers; further questions are refused."""

_ROOT = Path(__file__).resolve().parents[1]
_counts: collections.Counter[str] = collections.Counter()


def counters() -> dict[str, int]:
    """Return this process's counts of questions and failures, for provenance.

    Keys: `worker_calls` (questions to the worker), `timeouts` (workers ended at a limit of time),
    `over_budget` (answers refused because their batch had spent `BUDGET_S`), `worker_failures`
    (workers that crashed), `failures` (answers counted as wrong because of a bug in this package).
    """
    names = ("worker_calls", "timeouts", "over_budget", "worker_failures", "failures")
    return {name: _counts[name] for name in names}


def count(name: str) -> None:
    """Add 1 to the counter `name`; after each `BATCH` of answers, renew the budget of CPU time."""
    _counts[name] += 1
    if name == "answers" and _counts[name] % BATCH == 0:
        _counts["spent_ms"] = 0


def reset_counters() -> None:
    """Set every count to 0, and empty the cache of the worker's answers."""
    _counts.clear()
    ask.cache_clear()


class WorkerLostError(RuntimeError):
    """The worker gave no answer: it took too long, crashed, or its budget is spent.

    The message is the `decided_by` of the verdict. This is an exception, since a cache must not
    keep it as a decision.
    """


@functools.lru_cache(maxsize=4096)
def ask(reference: str, answer: str) -> tuple[bool, str]:
    """Ask the worker whether two texts are equal; return (equal, step).

    Raises:
        WorkerLostError: there is no answer; the same question may be asked again.
    """
    # By process id, since a forked child would inherit a lock that its parent holds for ever.
    with _lock_of(os.getpid()):
        # CPU time that the worker spent on this batch of answers; `count` renews it.
        if _counts["spent_ms"] >= 1000 * BUDGET_S:
            count("over_budget")
            raise WorkerLostError("over budget")
        count("worker_calls")
        worker = _started()
        assert worker.stdin is not None and worker.stdout is not None
        # The worker limits its own CPU time; this limit of wall time is for a very busy machine.
        backstop = threading.Timer(PATIENCE_S, worker.kill)
        backstop.start()
        try:
            worker.stdin.write(f"{json.dumps([reference, answer])}\n".encode())
            worker.stdin.flush()
            line = worker.stdout.readline()
        except BrokenPipeError:
            line = b""
        except BaseException:
            # Interrupted: the next question would read this one's answer.
            worker.kill()
            worker.wait()
            raise
        finally:
            backstop.cancel()
        # A line without its end, or none, was cut off when the worker ended.
        if line.endswith(b"\n"):
            equal, step, spent_s = json.loads(line)
            _counts["spent_ms"] += int(1000 * spent_s)
            return equal, step
        # A worker that ended reports no CPU time: the most that it may have used is counted.
        _counts["spent_ms"] += int(1000 * TIMEOUT_S)
        # A signal's negative number: SIGPROF is the worker's own limit, SIGKILL the backstop's.
        late = worker.wait() in (-signal.SIGPROF, -signal.SIGKILL)
        count("timeouts" if late else "worker_failures")
        raise WorkerLostError("timeout" if late else "worker failure")


_lock_of = functools.cache(lambda pid: threading.Lock())
"""A lock for each process: a forked child would inherit a lock that its parent holds for ever."""
_workers: dict[int, subprocess.Popen[bytes]] = {}


def _started() -> subprocess.Popen[bytes]:
    """Return this process's worker; start one if there is none or it has ended."""
    worker = _workers.get(os.getpid())
    if worker is not None and worker.poll() is not None:
        worker.communicate()
        worker = None
    if worker is None:
        worker = subprocess.Popen(
            [sys.executable, "-m", "reckon_verifier.symbolic", str(TIMEOUT_S)],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        # A busy machine may take longer than `PATIENCE_S` to load sympy, which the first question
        # would be charged for; without a line the worker has ended.
        assert worker.stdout is not None
        worker.stdout.readline()
        _workers[os.getpid()] = worker
    return worker


def main() -> None:
    """Run the worker: answer questions from stdin, one a line, until the input ends.

    SIGPROF ends this process if a question takes more CPU time than the first argument, in seconds.
    """
    import sympy  # noqa: F401  loaded before the first question is timed

    # Beyond this address space an allocation raises MemoryError, which `decide` survives.
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        start = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, float(sys.argv[1]))
        answer = decide(*json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps([*answer, time.process_time() - start]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
