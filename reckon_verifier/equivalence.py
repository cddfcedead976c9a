r"""Decide whether an answer equals the reference: `\frac12` and `0.5` are equal.

Equal texts and plain numbers are decided first. Any other pair is parsed
(`reckon_verifier.phrases`),
and the two trees are compared by `RULES`. If these cannot decide integrals, limits and sums, the
worker with sympy is asked (`reckon_verifier.symbolic`). If the pair is not equal, other readings of
it (`conversions`) are compared last, such as `3,14` as 3.14.
"""

import collections
import contextlib
import itertools
import re
from collections.abc import Iterator

from reckon_verifier import symbolic
from reckon_verifier.atoms import ACCENTS, parse_number
from reckon_verifier.evaluate import as_number
from reckon_verifier.extract import as_text, reference_text, unwrapped
from reckon_verifier.formula import MODULUS
from reckon_verifier.phrases import read
from reckon_verifier.quantities import (
    RATIO,
    compare_angle,
    compare_base,
    compare_percent,
    compare_quantity,
    compare_ratio,
    compare_scalar,
)
from reckon_verifier.relations import compare_quantified, compare_stated, compare_words
from reckon_verifier.rules import Comparer, Comparison, Verdict
from reckon_verifier.sets import compare_grid, compare_region
from reckon_verifier.tokens import repaired
from reckon_verifier.tree import (
    MAX_ANSWER_CHARS,
    Node,
    TooHard,
    Undecided,
    Unparsable,
    bound_memory,
    free_symbols,
    is_name,
    negated,
    nodes,
    remembered,
    substituted,
    symbol,
)


def compare_choice(comparer: Comparer, reference: Node, answer: Node) -> Verdict | bool:
    """Compare letters of multiple choice: `A` equals `(A)`.

    The text of `(B) 12` must equal that of option B, if the problem lists one.
    Applies if at least one side is a choice node, such as `(A)`: the symbols `a` and `A` differ.
    """
    texts = (*reference.args, *answer.args)
    # An answer `a` may mean the reference `(A)`, but not `A. 3`, with a text. A reference `a` is a
    # variable.
    letter = _letter(reference, "[A-J]")
    other = _letter(answer, "[A-J]" if texts else "[A-Ja-j]")
    if not (letter and other) and not (answer.kind == "choice" and answer.args):
        return False
    option = options(comparer.problem).get(letter or other, "") if texts else ""
    listed = option_value(option)
    if option and not listed:
        return False
    if letter:
        # `(B) words`, but the problem has no text of an option B to compare them with.
        is_unknown = not option and any(text.kind == "phrase" for text in texts)
        # Without an option, two texts must equal each other: `(A) 3` is not `(A) 4`.
        value = listed or (texts[0] if texts else None)
        is_same = value is None or all(comparer.equal(value, text) for text in texts)
        return letter == other and not is_unknown and is_same
    # The answer `(B) 12` for the reference 12: the value counts, and the letter must fit it.
    (text,) = answer.args
    if (listed and not comparer.equal(listed, text)) or (
        # `B: 5` lacks the x of `x = 5`.
        reference.kind == "relation" != text.kind
    ):
        return False
    return comparer.same(reference, text)


def _letter(node: Node, known: str) -> str:
    """Return the capital letter of a choice, or of a symbol in `known`: "A" for `a`; else ''."""
    is_letter = node.kind == "symbol" and re.fullmatch(known, node.name)
    return node.name.upper() if node.kind == "choice" or is_letter else ""


RULES: dict[Comparison, tuple[str, str]] = {
    compare_choice: ("choice", "choice"),
    compare_region: ("", ""),
    compare_quantified: ("quantified", "quantifier"),
    compare_stated: ("", ""),
    compare_words: ("phrase label", "words"),
    compare_grid: ("", ""),
    compare_quantity: ("unit", "unit"),
    compare_angle: ("degree", "angle"),
    compare_percent: ("percent", "percent"),
    compare_ratio: ("ratio", "ratio"),
    compare_base: ("base", "base"),
    compare_scalar: ("", ""),
}
"""The rules in order, each with kinds of nodes, '' for all, and the step of its verdicts.

A rule applies if either side is of one of its kinds; the first that does not return None decides.
Without a step, the rule names its own.
"""


def is_equivalent(*, reference: str, answer: str | None, problem: str | None = None) -> bool:
    r"""Return True if `answer` is right: equal to `reference` in any notation.

    `0.5` equals `\frac12`, and `x = 5` equals `5`. The order of the two may matter: for a unit,
    sign or name that one of them lacks, a rounding, or a decimal comma (README.md). None and
    an empty text equal nothing.

    Args:
        reference: the right answer, bare or in a box or tags.
        answer: the extracted answer, None if there is none.
        problem: text of the problem; it settles the unit that an answer may add, the options of
            multiple choice, and the names of variables.
    """
    return compare(reference=reference, answer=answer, problem=problem).equal


def compare(
    *, reference: str, answer: str | None, problem: str | None = None, thorough: bool = True
) -> Verdict:
    """Return the decision of `is_equivalent`, and the name of the step that decided.

    Limits of work, bugs of this package (`_SURVIVED`) and a lost worker are no exceptions: they
    give an unequal verdict with a name of `REFUSALS`.

    Args:
        reference: the right answer, bare or in a box or tags.
        answer: the extracted answer, None if there is none.
        problem: text of the problem, None if it is not known.
        thorough: whether to ask the worker with sympy if no rule can decide.
    """
    expected, actual = (as_text(text).strip() for text in (reference, answer))
    if not actual or is_placeholder(expected):
        return Verdict(False, "no answer")
    if expected == actual:
        return Verdict(True, "exact")
    symbolic.count("answers")
    bound_memory(len(expected) + len(actual) + len(problem or ""))
    try:
        return _compare(expected, actual, problem or "", thorough)
    except symbolic.WorkerLostError as error:
        # Caught here, since the cache of `_compare` must not keep this decision.
        return Verdict(False, str(error))
    except _SURVIVED:
        symbolic.count("failures")
        return Verdict(False, "failure")


def _without_modulus(expected: str, actual: str) -> tuple[str, str]:
    r"""Remove the modulus of `5 \pmod 7` from the answer; from both if it is the same."""
    sides = expected.rstrip(" ."), actual.rstrip(" .")
    ends = [[each for each in MODULUS.finditer(side) if each.end() == len(side)] for side in sides]
    moduli = [end[-1]["modulus"] if end else None for end in ends]
    if moduli[1] is None or moduli[0] not in (None, moduli[1]):
        return expected, actual
    left, right = (MODULUS.sub("", side).rstrip().replace(r"\equiv", "=") for side in sides)
    return left, right


_SURVIVED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors that a bug of this package may raise: counted, since none must end a training run."""
_INTEGER = re.compile(r"-?\d{1,300}")


@remembered(16_384)
def _compare(expected: str, actual: str, problem: str, thorough: bool) -> Verdict:
    """Compare two different texts, not empty, and cache the verdict.

    Raises:
        WorkerLostError: sympy's worker gave no answer.
    """
    if problem:
        expected, actual = (_settled(text, problem) for text in (expected, actual))
    numbers = as_number(expected), as_number(actual)
    if numbers[0] is not None and numbers[0] == numbers[1]:
        return Verdict(True, "number")
    # Different plain integers: no rule below could make them equal.
    if _INTEGER.fullmatch(expected) and _INTEGER.fullmatch(actual):
        return Verdict(False, "number")
    expected, actual = reference_text(_mended(expected)), unwrapped(_mended(actual))
    # `2 to 3` is a ratio in a reference; in an answer it may be a range.
    expected = _AS_RATIO.sub(r"\1:\2", expected)
    if ":" in expected or RATIO.search(problem):
        actual = _AS_RATIO.sub(r"\1:\2", actual)
    expected, actual = _without_modulus(expected, actual)
    comparer = Comparer(problem, RULES)
    try:
        tree = read(expected)
        trees = tree, _answered(comparer, tree, read(actual))
        # A formula copied from the problem is no answer, unless it is the reference.
        may_echo = _may_echo(actual, problem)
        if may_echo and _is_in(actual, problem) and _leaves(trees[0]) != _leaves(trees[1]):
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
                    verdict = Verdict(True, step)
                    break
        # Only now, since parsing the problem's formulas takes time.
        if verdict.equal and may_echo and _copies(comparer, *trees):
            return Verdict(False, "echo")
    except tuple(_REFUSED) as error:
        return Verdict(False, _REFUSED[type(error)])
    return verdict


def _settled(text: str, problem: str) -> str:
    r"""Write what only the problem settles in a plainer way.

    `70,110` is a list if answers are "separated by commas"; `\mathbf{(B)}` is one of the options,
    and `x(t) = 5t` names x, a function of the problem.
    """
    if _COMMAS.search(problem) and not re.search(r",\s", text):
        text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", ", ", text)
    if options(problem):
        text = re.sub(r"\\(?:mathbf|boldsymbol|bm)\s*\{\s*(\(?[A-J]\)?)[.:]?\s*\}", r"\1", text)
    # No f(x), whose argument may have another name.
    if match := re.match(r"([\s$]*([a-eh-zA-EI-OR-Z]))\s*\(\s*([a-z])\s*\)\s*(?==)", text):
        name, argument = match[2], match[3]
        derivative = rf"d\s*{name}\s*(?:\}}\s*\{{|/)\s*d\s*{argument}"
        function = rf"(?<![A-Za-z\\]){name}(?:\({argument}\)|')|dot\s*\{{?{name}|{derivative}"
        # `y(t) = 2x` names no y.
        rest = text[match.end() :]
        if argument in rest and re.search(function, problem):
            text = match[1] + rest
    return text


_COMMAS = re.compile(
    r"(?i)separated? (?:\w+ ){0,4}(?:by|with|using) (?:a )?commas?|comma[- ]separated"
)
_AS_RATIO = re.compile(r"^\s*(\d+)\s*(?:\\text\s*\{\s*)?to(?:\s*\})?\s*(\d+)\s*$")
_REFUSED = {Unparsable: "unparsed", TooHard: "limit", Undecided: "undecided"}


def _mended(text: str) -> str:
    """Mend a text (`repaired`), and remove the braces around a word: `{{5}}` -> `5`."""
    text = re.sub(r"^\{+(\w+)\}+$", r"\1", text)
    return repaired(text) if len(text) <= MAX_ANSWER_CHARS else text


_OPTIONS = re.compile(r"\([A-D]\)|\b[A-D][.)]")
_WRITTEN = re.compile(r"[\s$.]|\\(?:left|right|[,;!: ])")
_FORMULAS = re.compile(r"(?s)\$([^$]{1,400})\$|\\\((.{1,400}?)\\\)|\\\[(.{1,400}?)\\\]")


def _may_echo(answer: str, problem: str) -> bool:
    """Return True if an answer is a formula of more than four characters.

    It has an operation, a power or a command, such as `\\frac`: a number or a name may be in any
    problem. False if the problem lists options: these are there to be copied.
    """
    bare = _WRITTEN.sub("", answer).strip("()")
    is_formula = re.search(r"[-+*/=]|\d_|\^\{?\w|\\(?!text|mathrm)[a-z]", bare)
    return bool(is_formula) and len(bare) > 4 and not _OPTIONS.search(problem)


def _is_in(answer: str, problem: str) -> bool:
    """Return True if the problem holds the answer's text, spacing aside."""
    bare, text = _WRITTEN.sub("", answer), _WRITTEN.sub("", problem)
    # Digits beside it belong to a number: `12\sqrt{3}` does not hold `2\sqrt{3}`.
    before, after = r"(?<!\d)" * bare[0].isdigit(), r"(?!\d)" * bare[-1].isdigit()
    return bare in text and bool(re.search(f"{before}{re.escape(bare)}{after}", text))


# "Find $x + y$", "What is the value of $\tan A$": the formula that is asked for.
_ASKED = re.compile(
    r"(?i)\b(?:find|what is|what's|compute|determine|evaluate|value of|calculate)\b"
    r"(?P<plain>(?: the)?(?: value of)? )?[^.$?]{0,60}\$(?P<formula>[^$]{1,100})\$"
)


def _answered(comparer: Comparer, reference: Node, answer: Node) -> Node:
    """Return 7 of the answer `a + b = 3 + 4 = 7` if nothing else is asked, else the answer.

    Raises:
        Undecided: the answer is `a = 7`, but `a + b` is asked.
    """
    is_chain = answer.kind == "relation" and {*answer.name.split(" ")} == {"="}
    if not is_chain or reference.kind == "relation" or not free_symbols(answer.args[0]):
        return answer
    name, *others, value = answer.args
    asked = {
        tree: bool(match["plain"])
        for match in _ASKED.finditer(comparer.problem)
        if (tree := option_value(match["formula"].strip(" .,;?"))) and tree.kind != "relation"
    }
    is_asked = any(comparer.equal(tree, name) for tree in asked)
    if is_name(name):
        # A chain, `a = 3 + 4 = 7`, may name its result anew.
        is_part = any(is_plain and name in nodes(tree) for tree, is_plain in asked.items())
        if is_part and not (is_asked or others):
            raise Undecided("a part of what is asked")
        return answer
    # Without a formula that is asked: `xy = 4 \cdot 6 = 24`.
    is_computed = not asked and others and not free_symbols(Node("list", (*others, value)))
    if (is_asked or is_computed) and all(comparer.equal(value, other) for other in others):
        return value
    return answer


def _copies(comparer: Comparer, reference: Node, answer: Node) -> bool:
    """Return True if an answer is a formula of the problem, whatever is around it.

    `E = E`, `E^1`, `|E|` and `E/2 + E/2` have all leaves of E: its numbers, letters and functions.
    They are copies if E has the reference's value, and the reference has other leaves.
    """
    right, own = _leaves(reference), _leaves(answer)
    is_chain = answer.kind == "relation"
    sides = [part for part in answer.args if not is_name(part)] if is_chain else [answer]
    for formula, leaves in _formulas(comparer.problem).items():
        held = [answer] if formula.kind == "relation" else sides
        is_around = not leaves <= right and all(leaves <= _leaves(side) for side in held)
        if is_around or leaves == own != right:
            try:
                is_copy = comparer.equal(formula, reference)
            except (Undecided, TooHard):
                # An integral or a sum, which the answer leaves as it is.
                is_copy = any(part.kind == "calculus" for part in nodes(formula))
            if is_copy:
                return True
    return False


def _leaves(node: Node) -> collections.Counter[str]:
    """Count a tree's numbers but 0 and 1, its functions, and its letters that are not bound.

    The value's name, the x of `x = 5`, is left out.
    """
    node = _defined(node)
    # The k of `k = 1` below a sum, and the t of `dt` in an integral, may have any name.
    bound = set[str]()
    for part in nodes(node):
        if part.kind == "calculus":
            first = part.args[0]
            bound |= {first.args[0].name} if first.kind == "relation" else set()
            bound |= {leaf.name[1:] for leaf in nodes(part) if re.fullmatch("d[a-z]", leaf.name)}
    leaves = collections.Counter[str]()
    for part in nodes(node):
        if part.value is not None:
            leaves[str(abs(part.value))] += abs(part.value) not in (0, 1)
        elif part.kind == "symbol":
            leaves[part.name] += part.name.removeprefix("d") not in bound
        elif part.kind not in ("sum", "product", "quotient", "relation"):
            leaves[f"{part.kind} {part.name}"] += 1
    return +leaves


@remembered(256)
def _formulas(problem: str) -> dict[Node, collections.Counter[str]]:
    """Return the formulas of a problem, and the sides of its equations, with their leaves."""
    formulas = dict[Node, collections.Counter[str]]()
    for match in _FORMULAS.finditer(problem):
        with contextlib.suppress(Unparsable, TooHard):
            tree = read(match[match.lastindex or 0].strip(" \n.,;:"))
            sides = tree.args if tree.kind == "relation" else ()
            formulas |= {part: _leaves(part) for part in (tree, *sides) if part.args}
    return formulas


# NuminaMath's `proof`, Python's None and nan; the word `none` may be an answer.
_PLACEHOLDER = re.compile(
    r"(?:(?i:proof|(?:not|no)[ _]?(?:found|answer)|nan|null|n/a|<na>)|None)?[.]?"
)


def is_placeholder(reference: str) -> bool:
    """Return True if a reference only fills a place: `proof`, `N/A`, None, `[]`, `[""]`, a blank.

    No answer equals it, not even the same text.
    """
    text = reference.strip(" \t\n$\"'")
    is_list = len(text) > 1 and text[0] + text[-1] in ("[]", "()", "{}")
    items = text[1:-1].split(",") if is_list else [text]
    return all(_PLACEHOLDER.fullmatch(item.strip(" \t\n\"'")) for item in items)


def reference_problem(text: str) -> str | None:
    """Return the reason why no answer could be compared with this reference, or None if it is good.

    `prepare` reports such references: each would silently give a reward of 0 to every answer except
    its own text.
    """
    if not text.strip():
        return "it is empty"
    if is_placeholder(text):
        return "it is a placeholder, no answer"
    try:
        read(reference_text(_mended(text.strip())))
    except TooHard as fault:
        return f"it is beyond the verifier's limits: {fault}"
    except Unparsable as fault:
        if str(fault) == "nothing is left":
            return "nothing is left of it without spacing and delimiters"
        return f"it is neither words nor mathematics that the verifier reads: {fault}"
    return None


Conversion = tuple[str, Node, Node]
"""(name of the step, reference, answer)"""


def conversions(text: str, expected: Node, actual: Node, problem: str) -> Iterator[Conversion]:
    """Yield other readings of an unequal pair: (name of the step, reference, answer).

    The answer `3,14` as 3.14; the answer's parameter n in nπ as the reference's k. The answer is
    right if one reading is equal.

    Args:
        text: the answer before it was parsed.
        expected: the reference.
        actual: the answer.
        problem: text of the problem, '' if it is not known.
    """
    # The groups of `-3,14`: "-", "3" and "14". (`3,140` would be thousands, and does not match.)
    if comma := _DECIMAL_COMMA.fullmatch(text.strip().strip("$")):
        value = parse_number(f"{comma[2]}.{comma[3]}")
        yield "decimal comma", expected, negated(value) if comma[1] else value
    if (counted := _counted(actual)) != actual:
        yield "identity", expected, counted
    yield from _renamed(expected, actual, problem)


def _counted(node: Node) -> Node:
    """Return an answer with each C(n, k) as a binomial; a point C equals no number anyway."""
    is_binomial = node.kind == "call" and node.name == "C" and len(node.args) == 2
    name = "binomial" if is_binomial else node.name
    return node._replace(args=tuple(map(_counted, node.args)), name=name)


# `3,14`, `-0,12345`; three digits after the comma would be thousands.
_DECIMAL_COMMA = re.compile(r"(-?)(\d+),(\d{1,2}|\d{4,})")


_OPTION = re.compile(
    r"(?:\\(?:text|textbf|mathrm|mathbf)\s*\{\s*)?(?:\((?=[A-Ja-j]\))|(?<![A-Za-z])(?=[A-J][.):]))"
    r"([A-Ja-j])[.):]\s*\}?(?:\\[ ,;]|~|\s|\\q?quad)*"
)


@remembered(512)
def options(problem: str) -> dict[str, str]:
    """Return the letter and the text of each option that a problem lists.

    `Pick one. (A) 10 (B) 12` -> {"A": "10", "B": "12"}. Empty if the letters are not A, B, and so
    on in order.
    """
    _, *parts = _OPTION.split(problem)
    letters = "".join(parts[::2]).upper()
    texts = [re.sub(r"(?:\\q?quad|\\\\|[\s,;$])+$", "", text).strip() for text in parts[1::2]]
    is_listed = len(letters) > 1 and "ABCDEFGHIJ".startswith(letters)
    return dict(zip(letters, texts, strict=False)) if is_listed else {}


def option_value(text: str) -> Node | None:
    """Return the tree of an option's text; None if it is empty or cannot be parsed."""
    try:
        return read(text.strip("$. "))
    except (Unparsable, TooHard):
        return None


_MAX_LETTERS = 3


# Letters and Greek names that are commonly parameters or constants of integration.
_PARAMETERS = frozenset("kmnjlpqrstabcdCK") | {"lambda", "mu"}


def _renamed(expected: Node, actual: Node, problem: str) -> Iterator[Conversion]:
    """Yield the pair for each way to rename the answer's parameters to the reference's.

    The answer nπ becomes kπ for the reference kπ. Nothing is yielded if a differing letter is no
    parameter or the problem names it, or if more than `_MAX_LETTERS` differ.
    """
    names = [free_symbols(_defined(node)) for node in (expected, actual)]
    expected_only, actual_only = sorted(names[0] - names[1]), sorted(names[1] - names[0])
    differing = {*expected_only, *actual_only}
    # Letters under an accent, as in `\hat{k}`, are names of vectors, not parameters.
    accented = {
        name
        for side in (expected, actual)
        for part in nodes(side)
        if part.kind == "call" and part.name in ACCENTS
        for name in free_symbols(part)
    }
    are_parameters = differing <= _PARAMETERS - accented - _letters(problem)
    # Without a problem only the constant of integration and integers beside π are parameters.
    is_certain = problem or (differing == {"C", "c"} and any(names[0] & names[1]))
    is_certain = is_certain or (
        differing <= {*"kmnj"} and all(symbol("pi") in nodes(node) for node in (expected, actual))
    )
    matching = 0 < len(expected_only) == len(actual_only) <= _MAX_LETTERS
    # Two letters by themselves, `k` and `x = n`, are different answers, not parameters.
    is_lone = all(_defined(node).kind == "symbol" for node in (expected, actual))
    if is_lone or not (are_parameters and is_certain and matching):
        return
    for order in itertools.permutations(expected_only):
        renamed = {old: symbol(new) for old, new in zip(actual_only, order, strict=True)}
        yield "parameter", expected, substituted(actual, renamed)


# No bracket opens within another, so that the time is linear in the length of any text.
_FORMULA = re.compile(r"\$[^$]+\$|\\\((?:(?!\\\().)*?\\\)|\\\[(?:(?!\\\[).)*?\\\]", re.DOTALL)
_NAMES = re.compile(r"\\(?:begin|end|text[a-z]*|operatorname\*?)\s*\{[^{}]*\}|\\[A-Za-z]+")


def _letters(problem: str) -> frozenset[str]:
    r"""Return the letters of a problem: those by themselves, λ, and the a and b of `$ab$`."""
    lone = re.findall(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])|(?<=\\)[a-z]+", problem)
    formulas = " ".join(_FORMULA.findall(problem.replace(r"\$", " ")))
    return frozenset(lone) | frozenset(_NAMES.sub(" ", formulas))


def _defined(node: Node) -> Node:
    """Return the right side of an equation for a name, 5 of `x = 5`; any other node as it is."""
    is_definition = node.kind == "relation" and node.name == "=" and is_name(node.args[0])
    return node.args[-1] if is_definition else node
