"""Whether an answer equals the reference: a cascade from cheap to thorough.

1. the same text; 2. plain numbers; 3. the same text once normalized; 4. the same structure with
equal parts, parts compared exactly where they are rational and numerically where not; 5. the
symbolic worker, for integrals, limits and infinite sums. Every step either decides or passes on.
"""

import functools
import re
from fractions import Fraction
from typing import NamedTuple

from lib.verifier import worker_client
from lib.verifier.calculus import is_symbolic_question
from lib.verifier.extract import extract_answer, last_boxed
from lib.verifier.limits import MAX_ANSWER_CHARS
from lib.verifier.normalize import normalize
from lib.verifier.numbers import as_number
from lib.verifier.parse import parse
from lib.verifier.scalars import Undecided
from lib.verifier.structure import plain, same
from lib.verifier.tree import Node, TooHard, Unparsable, with_common_logarithm
from lib.verifier.units import number_word, parse_unit, same_time
from lib.verifier.vocabulary import has_prose


class Verdict(NamedTuple):
    """A decision and the step that took it."""

    equal: bool
    decided_by: str


def is_equivalent(*, reference: str, answer: str | None) -> bool:
    """Whether `answer` is as good as `reference`.

    Not symmetric: units and names that the reference leaves out may be there in the answer, and a
    decimal answer may stand for an exact reference. None, and an empty text, equal nothing. Which
    conventions hold is listed in docs/verifier.md.
    """
    return compare(reference=reference, answer=answer).equal


def compare(*, reference: str, answer: str | None, thorough: bool = True) -> Verdict:
    """`is_equivalent` with the step that decided.

    Args:
        reference: the right answer, bare or as the text that ends in it.
        answer: what was extracted from a completion.
        thorough: also ask the symbolic worker, where the steps before cannot tell.
    """
    if answer is None:
        return Verdict(False, "no answer")
    right, given = reference.strip(), answer.strip()
    if not right or not given:
        return Verdict(False, "no answer")
    if right == given:
        return Verdict(True, "exact")
    try:
        return _compare(right, given, thorough)
    except worker_client.WorkerLostError as error:
        return Verdict(False, str(error))
    except _SURVIVED:
        worker_client.count("failures")
        return Verdict(False, "failure")


_SURVIVED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a fault of this package may raise: counted, since it must not end a training run."""


@functools.lru_cache(maxsize=16_384)
def _compare(right: str, given: str, thorough: bool) -> Verdict:
    numbers = as_number(right), as_number(given)
    if numbers[0] is not None and numbers[0] == numbers[1]:
        return Verdict(True, "number")
    reference, answer = _prepared(right), normalize(given)
    if "boxed{" in answer:
        answer = normalize(last_boxed(answer) or answer)
    if not reference or not answer:
        return Verdict(False, "no answer")
    if reference == answer:
        return Verdict(True, "normalized")
    if len(answer) > MAX_ANSWER_CHARS and not has_prose(answer):
        return Verdict(False, "limit")
    if choice := _choices(reference, answer):
        return choice
    if ":" in reference and (equal := same_time(reference, answer)) is not None:
        return Verdict(equal, "time")
    if _letters(reference) == _letters(answer):
        return Verdict(True, "text")
    if (word := _number_word(answer, numbers[0])) or (word := _number_word(reference, numbers[1])):
        return word
    if reference.isalpha() and reference.isupper() and len(reference) >= 3 and answer.isalpha():
        return Verdict(False, "text")
    if {_EMPTY.sub("", reference.lower()), _EMPTY.sub("", answer.lower())} <= _NOTHING:
        return Verdict(True, "empty set")
    return _by_structure(reference, answer, thorough)


@functools.lru_cache(maxsize=8192)
def _prepared(text: str) -> str:
    """A reference, normalized; of a text that ends in its answer, that answer."""
    return normalize((last_boxed(text) if "boxed{" in text else None) or text)


def _number_word(text: str, number: Fraction | None) -> Verdict | None:
    """Whether `text` names `number`, "seven"; None where it is no such word."""
    word = number_word(_FORMATTED.sub("", text).strip("{} ").lower())
    return None if word is None or number is None else Verdict(word == number, "number word")


_EMPTY = re.compile(r"\\(?:text|mathrm|mbox)\b|[{}\s\\]|\bsolutions?\b|\bset\b")
_NOTHING = {"no", "emptyset", "varnothing", "empty", "none", "thereareno"}
_CHOICE = re.compile(
    r"(?:(?:Option|Choice|Answer):? )?(?:\\(?:text|mathrm|textbf|mathbf)\{)?\s*\(?\s*"
    r"([A-Za-z])\s*[).:]*\s*\}?"
)
_CHOICE_WITH_VALUE = re.compile(r"(?:\\(?:text|mathrm|textbf|mathbf)\{)?\s*\(?([A-E])[).:]")


def _choices(reference: str, answer: str) -> Verdict | None:
    """Letters of multiple choice, where both are letters and one is marked as one."""
    right = _CHOICE.fullmatch(reference)
    if right is None:
        found = _CHOICE_WITH_VALUE.match(reference) if _CHOICE.fullmatch(answer) else None
        return _choices(found[1], answer) if found else None
    given = _CHOICE.fullmatch(answer)
    if given is None:
        found = _CHOICE_WITH_VALUE.match(answer)
        return Verdict(found[1] == right[1], "choice") if found else None
    marked = right[0] != right[1] or given[0] != given[1] or right[1] in "ABCD"
    same_letter = right[1].lower() == given[1].lower() if marked else right[1] == given[1]
    return Verdict(same_letter, "choice")


_MARKS = re.compile(r"\\(?:text|mbox|textbf|textit|textrm|mathrm|mathbf|operatorname)\b|[^\w]|_")


def _letters(text: str) -> str | int:
    """A text without mathematics in lower case; of anything else, a value that equals nothing."""
    if len(text) > MAX_ANSWER_CHARS:
        return text
    bare = _MARKS.sub("", _ARTICLE.sub("", _FORMATTED.sub("", text).strip(" {"))).lower()
    words = len(bare) >= 3 and bare.isalpha() and "\\" not in _FORMATTED.sub("", text)
    operators = any(sign in text for sign in "=<>+-*/^|,")
    return bare if words and not operators else id(text)


_ARTICLE = re.compile(r"^(?:the|an?)\s+(?=[a-z]{3})", re.IGNORECASE)
_FORMATTED = re.compile(r"\\(?:text|mbox|textbf|textit|textrm|mathrm|mathbf|operatorname)\b|\\ ")


def _by_structure(reference: str, answer: str, thorough: bool) -> Verdict:
    try:
        right = _tree(reference)
    except Unparsable:
        return _as_prose(reference, answer, thorough)
    except TooHard:
        return Verdict(False, "limit")
    try:
        verdict = _by_trees(right, _tree(answer), reference, answer, thorough)
    except Unparsable:
        verdict = Verdict(False, "unparsed")
    except TooHard:
        verdict = Verdict(False, "limit")
    if verdict.equal or has_prose(reference) or not has_prose(answer):
        return verdict
    return _from_prose(reference, answer, thorough)


def _tree(text: str) -> Node:
    try:
        return parse(text)
    except Unparsable:
        return parse(text, False)


_UNDECIDED = Verdict(False, "undecided")


def _by_trees(right: Node, given: Node, reference: str, answer: str, thorough: bool) -> Verdict:
    try:
        verdict = Verdict(*same(right, given))
    except Undecided:
        asked = thorough and is_symbolic_question(right, given)
        verdict = Verdict(*worker_client.ask(reference, answer)) if asked else _UNDECIDED
    if not verdict.equal:
        return _other_readings(right, given, reference, answer) or verdict
    return verdict


_DECIMAL_COMMA = re.compile(r"-?\d+,\d+")
_BARE_UNIT = re.compile(
    r"([-+]?[\d.,]+(?:/\d+|\s*\\times\s*10\^\{?-?\d+\}?)?)\s*([A-Za-zµ°/^0-9{} ]+)"
)


def _other_readings(right: Node, given: Node, reference: str, answer: str) -> Verdict | None:
    """The answer read another way: decimal comma, commas that separate, a unit without a mark."""
    decimal = _DECIMAL_COMMA.fullmatch(answer) and right.kind == "number"
    if decimal and _holds(right, parse(answer.replace(",", "."))):
        return Verdict(True, "decimal comma")
    if given.kind == "product" and right.kind in ("number", "quotient", "unit"):
        found = _BARE_UNIT.fullmatch(answer)
        unit = found and Node("unit", (_tree(found[1]),), found[2])
        if unit and parse_unit(unit.name) and _holds(right, unit):
            return Verdict(True, "units")
    has_logarithm = "log" in reference or "log" in answer
    if has_logarithm and _holds(with_common_logarithm(right), with_common_logarithm(given)):
        return Verdict(True, "common logarithm")
    if "," in reference and "," in answer:
        trees = parse(reference, False), parse(answer, False)
        if trees != (right, given) and (_holds(right, trees[1]) or _holds(trees[0], given)):
            return Verdict(True, "separators")
    return None


def _holds(right: Node, given: Node) -> bool:
    """Whether two trees are the same, as far as can be told without the worker."""
    try:
        return same(right, given)[0]
    except (Undecided, TooHard):
        return False


def _as_prose(reference: str, answer: str, thorough: bool) -> Verdict:
    """A reference in words: the same words, or the same answer in both."""
    if _words(reference) == _words(answer):
        return Verdict(True, "text")
    if not has_prose(reference):
        return Verdict(False, "text")
    inner = extract_answer(reference)
    if inner is None or normalize(inner) == reference:
        return Verdict(False, "text")
    return compare(reference=inner, answer=answer, thorough=thorough)


def _from_prose(reference: str, answer: str, thorough: bool) -> Verdict:
    """An answer with words around it: what is left without them."""
    if _words(reference) == _words(answer):
        return Verdict(True, "text")
    inner = (_phrase(answer) if reference.isalpha() or "text" in reference else None) or (
        extract_answer(answer)
    )
    if inner is None or normalize(inner) == answer:
        return Verdict(False, "unparsed")
    return compare(reference=reference, answer=inner, thorough=thorough)


_IS = re.compile(r".*\b(?:is|are|be)\b:?\s+(?:an?\s+|the\s+)?(.+)", re.DOTALL)


def _phrase(answer: str) -> str | None:
    """What a sentence says that something is: "The graph is a hyperbola"."""
    found = _IS.fullmatch(answer)
    return found[1] if found else None


def _words(text: str) -> str:
    return "".join(_FORMATTED.sub("", text[:MAX_ANSWER_CHARS]).lower().split())


def reference_problem(text: str) -> str | None:
    """Why no answer could be compared with this reference, None where it can serve as one.

    For `prepare`, which reports row and text: such a reference would silently be a reward of 0
    for every answer but its own text.
    """
    if not text.strip():
        return "it is empty"
    prepared = _prepared(text)
    if not prepared:
        return "nothing is left of it without spacing and delimiters"
    if prepared.isalpha() or as_number(prepared) is not None:
        return None
    try:
        _tree(prepared)
    except TooHard as error:
        return f"it is beyond the verifier's limits: {error}"
    except Unparsable as error:
        if has_prose(prepared) and extract_answer(prepared) is None:
            return None
        return f"it is neither words nor mathematics that the verifier reads: {error}"
    return None


__all__ = ["Verdict", "compare", "is_equivalent", "plain", "reference_problem"]
