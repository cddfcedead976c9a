"""Decide whether an answer equals the reference.

The same text; plain numbers; else both are read (`lib.verifier.phrases`) and their trees compared
by `RULES`; for integrals, limits and sums, sympy in the worker is asked at last.
"""

import re

from lib.verifier import symbolic
from lib.verifier.evaluate import as_number
from lib.verifier.extract import as_text, unwrapped
from lib.verifier.phrases import read
from lib.verifier.quantities import (
    compare_angle,
    compare_base,
    compare_congruence,
    compare_percent,
    compare_quantity,
    compare_ratio,
    compare_scalar,
)
from lib.verifier.relations import compare_stated
from lib.verifier.rules import Comparer, Comparison, Verdict
from lib.verifier.sets import compare_region
from lib.verifier.structures import (
    compare_cases,
    compare_choice,
    compare_grid,
    compare_quantified,
    compare_words,
    conversions,
)
from lib.verifier.tokens import repaired
from lib.verifier.tree import (
    MAX_ANSWER_CHARS,
    TooHard,
    Undecided,
    Unparsable,
    bound_memory,
    remembered,
)

RULES: dict[Comparison, str] = {
    compare_choice: "choice symbol",
    compare_cases: "cases",
    compare_region: "",
    compare_quantified: "quantified",
    compare_stated: "",
    compare_words: "phrase label time date",
    compare_grid: "",
    compare_quantity: "unit amount",
    compare_angle: "degree",
    compare_percent: "percent",
    compare_base: "base",
    compare_ratio: "ratio",
    compare_congruence: "call",
    compare_scalar: "",
}
"""In order, with the kinds of which one side must be; the first that can tell decides."""


def is_equivalent(*, reference: str, answer: str | None, problem: str | None = None) -> bool:
    """Return True if `answer` is as good as `reference`.

    Symmetric but for what docs/verifier.md lists: a unit or name that the reference leaves out, and
    decimals that are roundings. None, and an empty text, equal nothing.

    Args:
        problem: text of the problem; what it settles, such as the letters of a choice, is used.
    """
    return compare(reference=reference, answer=answer, problem=problem).equal


def compare(
    *, reference: str, answer: str | None, problem: str | None = None, thorough: bool = True
) -> Verdict:
    """Return the decision of `is_equivalent` with the step that decided.

    Args:
        reference: the right answer, bare or as the text that ends in it.
        answer: what was extracted from a completion.
        problem: text of the problem, None where it is not known.
        thorough: also ask the symbolic worker, where the steps before cannot tell.
    """
    expected, actual = (as_text(text).strip() for text in (reference, answer))
    if not expected or not actual:
        return Verdict(False, "no answer")
    if expected == actual:
        return Verdict(True, "exact")
    symbolic.count("answers")
    bound_memory(len(expected) + len(actual) + len(problem or ""))
    try:
        return _compare(expected, actual, problem or "", thorough)
    except symbolic.WorkerLostError as error:
        return Verdict(False, str(error))
    except _SURVIVED:
        symbolic.count("failures")
        return Verdict(False, "failure")


_SURVIVED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a fault of this package may raise: counted, since it must not end a training run."""
_INTEGER = re.compile(r"-?\d{1,300}")


@remembered(16_384)
def _compare(expected: str, actual: str, problem: str, thorough: bool) -> Verdict:
    numbers = as_number(expected), as_number(actual)
    if numbers[0] is not None and numbers[0] == numbers[1]:
        return Verdict(True, "number")
    if _INTEGER.fullmatch(expected) and _INTEGER.fullmatch(actual):
        return Verdict(False, "number")
    expected, actual = _unwrapped(expected), _unwrapped(actual)
    comparer = Comparer(problem, RULES)
    try:
        trees = read(expected), read(actual)
        if _echoes(actual, problem) and trees[0] != trees[1]:
            return Verdict(False, "echo")
        try:
            verdict = comparer.same(*trees)
        except Undecided:
            if not thorough or not symbolic.is_symbolic_question(*trees):
                raise
            verdict = Verdict(*symbolic.ask(expected, actual))
        if not verdict.equal:
            for step, reference, answer in conversions(actual, *trees, problem):
                if comparer.equal(reference, answer):
                    return Verdict(True, step)
    except tuple(_REFUSED) as error:
        return Verdict(False, _REFUSED[type(error)])
    return verdict


_REFUSED = {Unparsable: "unparsed", TooHard: "limit", Undecided: "undecided"}


def _unwrapped(text: str) -> str:
    """Remove the box, tag or braces around an answer."""
    text = re.sub(r"^\{+(\w+)\}+$", r"\1", text)
    return unwrapped(repaired(text)) if len(text) <= MAX_ANSWER_CHARS else text


_OPTIONS = re.compile(r"\([A-D]\)|\b[A-D][.)]")
_WRITTEN = re.compile(r"[\s$.]|\\(?:left|right|[,;!: ])")


def _echoes(answer: str, problem: str) -> bool:
    """Return True if an answer only repeats a formula or the text of a problem that lists no
    options.
    """
    bare = _WRITTEN.sub("", answer)
    is_formula = len(bare) > 4 and re.search(r"[-+*/=]|\^\{?\w|\\(?!text|mathrm)[a-z]", bare)
    return bool(is_formula) and bare in _WRITTEN.sub("", problem) and not _OPTIONS.search(problem)


def reference_problem(text: str) -> str | None:
    """Explain why no answer could be compared with this reference; None if it can serve as one.

    For `prepare`, which reports row and text: such a reference would silently be a reward of 0
    for every answer but its own text.
    """
    if not text.strip():
        return "it is empty"
    try:
        read(_unwrapped(text.strip()))
    except TooHard as fault:
        return f"it is beyond the verifier's limits: {fault}"
    except Unparsable as fault:
        if str(fault) == "nothing is left":
            return "nothing is left of it without spacing and delimiters"
        return f"it is neither words nor mathematics that the verifier reads: {fault}"
    return None
