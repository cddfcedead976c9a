r"""Laws of all answers, tried without labels.

edit        a reference with a change of what it says is refused: a table of `KINDS` of changes
disjoint    an answer equals two references only if these equal each other; references as answers
universal   the same for random strings of tokens: no text answers everything
reflexive   a reference equals itself
symmetric   equality holds in both orders
transitive  what equals the same text is equal

The conventions of reckon_verifier/README.md are no violations: a unit, a label or a per cent sign
that one side leaves out, and a rounding. `is_loose` tells where one may be at work.
"""

import functools
import itertools
import random
import re
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from bench.verifier.graders import Grader
from reckon_verifier.wrong import KINDS
from reckon_verifier.wrong.edits import LENGTH
from reckon_verifier.wrong.families import TEMPLATES, Case, Pair, derived

LEAVES, SHAPES, PIECES = (TEMPLATES[f"fuzz: {name}"] for name in ("leaves", "shapes", "pieces"))
TOKENS = (*LEAVES, *PIECES, *TEMPLATES["laws: tokens"])

_LOOSE = re.compile(
    r"%|\\text|\\math|\\circ|[°$€£=≈:;,∈]|approx|\d\.\d|\\in\b|_\{?10|(?<![\\A-Za-z])[A-Za-z]{2}"
    r"|^\(?[A-Ja-j]\)?$"
)


def bounded(pairs: Iterator[Pair], limit: int, seed: int = 0) -> list[Pair]:
    """Select at most so many (0: all), the same ones for a seed, whatever others there are."""
    text = "{0}{1.reference}{1.answer}{1.problem}".format
    return sorted(pairs, key=lambda pair: zlib.crc32(text(seed, pair).encode()))[: limit or None]


def accepted_pairs(pairs: list[Pair], grader: Grader) -> list[Pair]:
    """Return the pairs counted as right by the grader."""
    forms = ("answer", "text")
    return [
        pair
        for pair in pairs
        if grader(pair.answer, pair.reference, forms[pair.is_text], pair.problem)
    ]


class Tried(NamedTuple):
    """Number of trials of a law, and the texts of its violations."""

    num_tried: int
    violations: list[tuple[str, ...]]


def is_loose(*texts: str) -> bool:
    """Return True if a convention may make one of these equal to texts unequal to each other."""
    return any(_LOOSE.search(text) for text in texts)


def _is_convention(answer: str, one: str, two: str) -> bool:
    """Return True if a convention may explain why two references equal an answer.

    They have the same digits, or one is an angle or named; a percentage is two numbers by itself.
    """
    digits = [re.sub(r"\D", "", text).strip("0") for text in (one, two)]
    is_free = any(re.search(r"\\circ|°|^\w\s*=", text) for text in (one, two))
    return "%" in answer or (is_loose(one, two) and (is_free or digits[0] == digits[1] != ""))


class Laws:
    """Laws over references, random strings and pairs known to be equal, for one grader."""

    def __init__(self, grader: Grader, texts: dict[str, str], seed: int, size: int) -> None:
        draw = random.Random(seed)
        short = sorted(text for text in texts if len(text) < LENGTH and "\n" not in text)
        self.texts, self.seed, self.grader = texts, seed, grader
        self.references = draw.sample(short, min(size, len(short)))
        self.strings = sorted(
            {
                draw.choice(["", " "]).join(draw.choices(TOKENS, k=draw.randint(1, 5)))
                for _ in range(2 * size)
            }
        )

    @functools.cache  # noqa: B019 (one object a run)
    def equal(self, reference: str, answer: str) -> bool:
        return self.grader(answer, reference, "answer", "")

    @functools.cached_property
    def hits(self) -> dict[str, list[str]]:
        """Map references and strings to the references equal to them."""
        answers = dict.fromkeys((*self.references, *self.strings))
        return {
            answer: [one for one in self.references if self.equal(one, answer)]
            for answer in answers
        }

    def edit(self, kind: str, limit: int) -> Tried:
        """Try changes of one kind on every reference."""
        pairs = bounded(derived(KINDS[kind], self.texts), limit, self.seed)
        accepted = accepted_pairs(pairs, self.grader)
        return Tried(len(pairs), [(pair.reference, pair.answer) for pair in accepted])

    def _shared(self, answers: list[str]) -> Tried:
        """Count one clash for each answer at most: the answer is at fault."""

        def clashes(answer: str) -> Iterator[tuple[str, ...]]:
            for one, two in itertools.combinations(self.hits[answer][:12], 2):
                equal = self.equal(one, two) or self.equal(two, one)
                if not (equal or _is_convention(answer, one, two)):
                    yield answer, one, two

        violations = [clash for answer in answers for clash in itertools.islice(clashes(answer), 1)]
        return Tried(len(answers) * len(self.references), violations)

    def disjoint(self) -> Tried:
        return self._shared(self.references)

    def universal(self) -> Tried:
        return self._shared(self.strings)

    def reflexive(self) -> Tried:
        texts = [text for text in self.texts if Case(text).text]
        return Tried(len(texts), [(text,) for text in texts if not self.equal(text, text)])

    def symmetric(self) -> Tried:
        pairs = [(one, answer) for answer, hits in self.hits.items() for one in hits]
        pairs = [pair for pair in pairs if not is_loose(*pair)]
        return Tried(len(pairs), [(one, two) for one, two in pairs if not self.equal(two, one)])

    def transitive(self) -> Tried:
        """Try two answers equal to one reference, in both orders."""
        triples = [
            (one, middle, two)
            for middle in self.references
            for one, two in itertools.permutations(self._equal_to(middle), 2)
        ]
        return Tried(
            len(triples), [triple for triple in triples if not self.equal(triple[0], triple[2])]
        )

    def _equal_to(self, reference: str) -> list[str]:
        """List at most eight texts equal to a reference, none with a convention."""
        if is_loose(reference):
            return []
        equal = (text for text, hits in self.hits.items() if reference in hits)
        strict = (
            text
            for text in dict.fromkeys((*equal, *spellings(reference)))
            if not is_loose(text) and text != reference and self.equal(reference, text)
        )
        return list(itertools.islice(strict, 8))


def spellings(text: str) -> Iterator[str]:
    """Yield other ways to write a formula, with the same meaning."""
    yield f"({text})"
    yield f"1({text})"
    yield rf"\frac{{{text}}}{{1}}"
    yield rf"0+{text}"
    yield rf"-(-({text}))"
    yield rf"\left({text}\right)^1"
    yield text.replace(r"\frac", r"\dfrac").replace(" ", "")
    yield re.sub(r"\\frac\{(\w+)\}\{(\w+)\}", r"(\1/\2)", text)
    yield re.sub(r"\\sqrt\{(\w+)\}", r"{(\1)^{1/2}}", text)


LAWS: dict[str, Callable[[Laws], Tried]] = {
    law.__name__: law
    for law in (Laws.disjoint, Laws.universal, Laws.reflexive, Laws.symmetric, Laws.transitive)
}
