"""Whether an answer equals the reference: a cascade from cheap to thorough.

1. the same text; 2. plain numbers; 3. the same text once normalized; 4. letters, words and times;
5. the same structure with equal parts, parts compared exactly where they are rational and by
intervals where not; 6. sympy in the worker, for integrals, limits and infinite sums; 7. another
reading of the same text (`lib.verifier.readings`), at last in the light of the problem. Every step
either decides or passes on.
"""

import re
from typing import NamedTuple

from lib.verifier import symbolic
from lib.verifier.compare import same
from lib.verifier.extract import as_text, unwrapped
from lib.verifier.normalize import normalize, repaired
from lib.verifier.numbers import as_number
from lib.verifier.parse import parse
from lib.verifier.readings import readings
from lib.verifier.tree import (
    MAX_ANSWER_CHARS,
    TooHard,
    Undecided,
    Unparsable,
    bound_memory,
    remembered,
)
from lib.verifier.vocabulary import FORMATTING, has_prose, hedges, same_time


class Verdict(NamedTuple):
    """A decision and the step that took it."""

    equal: bool
    decided_by: str


def is_equivalent(*, reference: str, answer: str | None, problem: str | None = None) -> bool:
    """Whether `answer` is as good as `reference`.

    Not symmetric: units and names that the reference leaves out may be there in the answer, and a
    decimal answer may represent an exact reference. None, and an empty text, equal nothing. Which
    conventions hold is listed in docs/verifier.md.

    Args:
        problem: text of the problem; what it settles, such as the letters of a choice, is used.
    """
    return compare(reference=reference, answer=answer, problem=problem).equal


def compare(
    *, reference: str, answer: str | None, problem: str | None = None, thorough: bool = True
) -> Verdict:
    """`is_equivalent` with the step that decided.

    Args:
        reference: the right answer, bare or as the text that ends in it.
        answer: what was extracted from a completion.
        problem: text of the problem, None where it is not known.
        thorough: also ask the symbolic worker, where the steps before cannot tell.
    """
    expected, actual = (repaired(as_text(text)).strip() for text in (reference, answer))
    if not expected or not actual:
        return Verdict(False, "no answer")
    if expected == actual:
        return Verdict(True, "exact")
    symbolic.count_answer()
    bound_memory(len(expected) + len(actual) + len(problem or ""))
    try:
        return _in_any_reading(expected, actual, problem or "", thorough)
    except symbolic.WorkerLostError as error:
        return Verdict(False, str(error))
    except _SURVIVED:
        symbolic.count("failures")
        return Verdict(False, "failure")


_OPTIONS = re.compile(r"\([A-D]\)|\b[A-D][.)]")
_WRITTEN = re.compile(r"[\s$.]|\\(?:left|right|[,;!: ])")


def _echoes(answer: str, problem: str) -> bool:
    """Whether an answer only repeats a formula or the text of a problem that lists no options."""
    bare = _WRITTEN.sub("", answer)
    is_formula = len(bare) > 4 and re.search(r"[-+*/=]|\^\{?\w|\\(?!text|mathrm)[a-z]", bare)
    return bool(is_formula) and bare in _WRITTEN.sub("", problem) and not _OPTIONS.search(problem)


_SURVIVED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a fault of this package may raise: counted, since it must not end a training run."""


@remembered(16_384)
def _in_any_reading(expected: str, actual: str, problem: str, thorough: bool) -> Verdict:
    verdict = _compare(expected, actual, thorough)
    if verdict.decided_by != "normalized" and _echoes(actual, problem):
        return Verdict(False, "echo")
    if not verdict.equal:
        for step, one, two in readings(_normalized(expected), _normalized(actual), problem):
            if one and two and _compare(one, two, thorough).equal:
                return Verdict(True, step)
    return verdict


@remembered(16_384)
def _compare(expected: str, actual: str, thorough: bool) -> Verdict:
    numbers = as_number(expected), as_number(actual)
    if numbers[0] is not None and numbers[0] == numbers[1]:
        return Verdict(True, "number")
    if _INTEGER.fullmatch(expected) and _INTEGER.fullmatch(actual):
        return Verdict(False, "number")
    reference, answer = _normalized(expected), _normalized(actual)
    if not reference or not answer:
        return Verdict(False, "no answer")
    if reference == answer:
        return Verdict(True, "normalized")
    return _by_words(reference, answer) or _by_structure(reference, answer, thorough)


_INTEGER = re.compile(r"-?\d{1,300}")


@remembered(8192)
def _normalized(text: str) -> str:
    """`text` in one spelling; of a text that ends in a box or a tag, what is in it."""
    return normalize(unwrapped(normalize(text) if "boxed{" not in text else text))


def _by_words(reference: str, answer: str) -> Verdict | None:
    """A verdict on letters of multiple choice, times and words; None where there are none."""
    if choice := _choices(reference, answer):
        return choice
    if (":" in reference or ":" in answer) and (equal := same_time(reference, answer)) is not None:
        return Verdict(equal, "time")
    words = _words(reference)
    if words and words == _words(answer):
        return Verdict(True, "text")
    if reference.isalpha() and reference.isupper() and len(reference) >= 3 and answer.isalpha():
        return Verdict(False, "text")
    return None


_STYLED = r"(?:\\(?:text|mathrm|textbf|mathbf)\{)?\s*\(?\s*"
_CHOICE = re.compile(
    rf"(?:(?:Option|Choice|Answer):? )?{_STYLED}([A-Za-z])\s*[).:]*\s*\}}?", re.IGNORECASE
)
_CHOICE_WITH_VALUE = re.compile(rf"{_STYLED}([A-H])[).:]+[}} ]*(.*)", re.DOTALL)
_JOINED = re.compile(r"^[,;|\\=/+-]|[<>]|\b(?:[A-H]|or|and)\b")


def _choices(reference: str, answer: str) -> Verdict | None:
    """Letters of multiple choice, where both are letters and one is marked as one."""
    expected, actual = _CHOICE.fullmatch(reference), _CHOICE.fullmatch(answer)
    if expected and actual:
        letters = expected[1], actual[1]
        marked = expected[0] != letters[0] or actual[0] != letters[1] or letters[0] in "ABCD"
        lower = letters[0].lower() == letters[1].lower()
        return Verdict(lower if marked else letters[0] == letters[1], "choice")
    letter = expected or actual
    other = letter and _CHOICE_WITH_VALUE.fullmatch(answer if expected else reference)
    # A value after the letter is no second letter, nor joined to it.
    is_one = other and not _JOINED.search(other[2]) and not hedges(other[2])
    return Verdict(other[1] == letter[1], "choice") if is_one and other and letter else None


_ARTICLE = re.compile(r"^(?:the|an?)\s+(?=[a-z]{3})")
_FORMATTED = re.compile(rf"{FORMATTING}|\\ ")


def _words(text: str) -> str:
    """Words as compared; '' where there are none, or anything else is among them."""
    plain = _FORMATTED.sub("", text[:MAX_ANSWER_CHARS]).lower().strip(" {")
    if re.search(r"[\\=<>+\-*/^|,\d]", plain):
        return ""
    bare = re.sub(r"[\W_]", "", _ARTICLE.sub("", plain))
    return bare if len(bare) >= 3 else ""


def _by_structure(reference: str, answer: str, thorough: bool) -> Verdict:
    try:
        trees = parse(reference), parse(answer)
        verdict = Verdict(*same(*trees))
    except Undecided:
        is_question = thorough and symbolic.is_symbolic_question(*trees)
        verdict = Verdict(
            *(symbolic.ask(reference, answer) if is_question else (False, "undecided"))
        )
    except Unparsable:
        verdict = Verdict(False, "unparsed")
    except TooHard:
        verdict = Verdict(False, "limit")
    return verdict


def reference_problem(text: str) -> str | None:
    """Why no answer could be compared with this reference, None where it can serve as one.

    For `prepare`, which reports row and text: such a reference would silently be a reward of 0
    for every answer but its own text.
    """
    if not text.strip():
        return "it is empty"
    prepared = _normalized(repaired(text))
    if not prepared:
        return "nothing is left of it without spacing and delimiters"
    if prepared.isalpha() or as_number(prepared) is not None:
        return None
    fault = _parse_fault(prepared)
    if isinstance(fault, TooHard):
        return f"it is beyond the verifier's limits: {fault}"
    if fault is None or has_prose(prepared):
        return None
    if any(_parse_fault(one) is None for _, one, _ in readings(prepared, prepared)):
        return None
    return f"it is neither words nor mathematics that the verifier reads: {fault}"


def _parse_fault(text: str) -> TooHard | Unparsable | None:
    try:
        parse(text)
    except (TooHard, Unparsable) as fault:
        return fault
    return None
