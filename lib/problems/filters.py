"""Filters of training sets apart from length: duplicates, leaks, unwanted answers.

Near duplicates: the sets of word 5-grams have a Jaccard similarity of at least a threshold, and the
first problem of each group stays. MinHash with locality-sensitive hashing proposes candidates
(Broder 1997; `datasketch`), and the exact similarity decides. Hashing therefore drops no row below
the threshold, and misses about one in a hundred pairs that are exactly at it. A problem with other
numbers is another problem: each changed word changes five 5-grams.

A training problem is contaminated by a benchmark if any run of n (8) words of its text occurs in a
benchmark problem, or if it contains a whole benchmark problem of fewer than n words. Words are
lower-cased runs of letters and digits, so that spacing, punctuation, case, accents and variant
characters hide no leak. In scripts without spaces (Chinese, Japanese, Thai, ...) two characters
count as a word, about the length of a word there.
"""

import dataclasses
import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from lib.artifacts.problems import RESPONSE, Problem
from lib.problems.store import ProblemTable
from lib.prompts.formats import last_box, response_parts
from lib.verifier import extract_answer, is_equivalent

SHINGLE_SIZE = 5
# The estimate's standard error is at most 0.5 / sqrt(64) = 0.06, below the margin.
NUM_PERMUTATIONS = 64
CANDIDATE_MARGIN = 0.1
"""The candidate threshold lies this much below the exact one, so that hashing misses few pairs."""
LSH_WEIGHTS = (0.1, 0.9)
"""Weights of a false and of a missed candidate: a false one costs only one exact comparison."""

_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Myanmar, Khmer
    r"\u3005-\u3007\u3041-\u31ff\u3400-\u9fff\U00020000-\U0003ffff"  # kana and Han
)
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
# A character of an unspaced script, or a run of other letters and digits:
# "let x=3, 中文" -> "let", "x", "3", "中", "文".
_WORD = re.compile(rf"([{_UNSPACED}])|[^\W_{_UNSPACED}]+")
# "1,234", "-3.5", "$12", "1e6". All parts are optional, but one digit is required: `(?=.*\d)`.
_NUMERIC = re.compile(r"(?=.*\d)[-+−]?\$?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:e[-+]?\d+)?", re.I)


def digest(text: str) -> int:
    """Hash a text to 64 bits, the same in every process, unlike Python's own hash."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def drop_exact_duplicates(table: ProblemTable) -> ProblemTable:
    """Keep the first of all problems with the same words; case and spacing do not count."""
    # Content hash → row of its first problem.
    first: dict[str, int] = {}

    def repeated(index: int, problem: Problem) -> tuple[str, str] | None:
        earlier = first.setdefault(problem.id, index)
        same = f"same words as row {earlier + 1}"
        return ("exact_duplicate", same) if earlier < index else None

    return table.keep(repeated)


def drop_near_duplicates(table: ProblemTable, *, similarity: float) -> ProblemTable:
    """Drop near duplicates of earlier kept problems.

    Args:
        table: problems, the preferred ones first.
        similarity: Jaccard similarity of word 5-grams from which a pair counts as near duplicates,
            in (0, 1).
    """
    # Imported here: with scipy it takes half a second.
    from datasketch import MinHash, MinHashLSH

    kept = MinHashLSH(
        threshold=max(similarity - CANDIDATE_MARGIN, CANDIDATE_MARGIN),
        num_perm=NUM_PERMUTATIONS,
        weights=LSH_WEIGHTS,
    )

    def resembles(index: int, problem: Problem) -> tuple[str, str] | None:
        shingles = _grams(_words(problem.problem), SHINGLE_SIZE)
        # A fixed seed, so that every run hashes with the same permutations.
        signature = MinHash(num_perm=NUM_PERMUTATIONS, seed=1)
        signature.update_batch([shingle.encode() for shingle in shingles])
        # Sorted: the earliest match is reported, whatever order the index returns.
        for candidate in sorted(kept.query(signature)):
            text = table.rows[candidate]["problem"]
            others = _grams(_words(text), SHINGLE_SIZE)
            # Two texts without words are not alike: 0 / 1.
            exact = len(shingles & others) / max(len(shingles | others), 1)
            if exact >= similarity:
                return "near_duplicate", f"similarity {exact:.3f} to: {text}"[:300]
        # Row indices are unique, so that the check for known keys is skipped.
        kept.insert(index, signature, check_duplication=False)
        return None

    return table.keep(resembles)


@dataclasses.dataclass(frozen=True, eq=False)
class BenchmarkIndex:
    """The n-grams of one benchmark, 12 bytes each.

    Attributes:
        name: the benchmark's name.
        num_problems: number of its problems.
        hashes: [N] hash of every n-gram of every problem, ascending.
        rows: [N] the row of each n-gram's problem, counted from 0.
        short: problems of fewer than n words: first word → (all words, row) of each.
    """

    name: str
    num_problems: int
    hashes: NDArray[np.uint64]
    rows: NDArray[np.int32]
    short: Mapping[str, Sequence[tuple[list[str], int]]]

    def shared(
        self, words: Sequence[str], grams: Sequence[str], hashes: NDArray[np.uint64]
    ) -> dict[int, str]:
        """Return row → shared text of each benchmark problem that a training problem overlaps.

        Args:
            words: the words of the training problem.
            grams: its n-grams.
            hashes: the hash of each.
        """
        # Short benchmark problems that the training problem contains whole.
        texts = {
            row: " ".join(short)
            for start, word in enumerate(words)
            for short, row in self.short.get(word, ())
            if words[start : start + len(short)] == short
        }
        # The range of equal entries for each hash, by binary search; most ranges are empty.
        starts, ends = (np.searchsorted(self.hashes, hashes, side) for side in ("left", "right"))
        for gram, start, end in zip(grams, starts, ends, strict=True):
            for row in self.rows[start:end].tolist():
                texts.setdefault(row, gram)
        return texts


def index_benchmark(name: str, texts: Sequence[str], *, size: int) -> BenchmarkIndex:
    """Index the n-grams of a benchmark's problem texts by their hashes, in ascending order.

    Texts too short for an n-gram are kept as words, by their first word.
    """
    hashes: list[int] = []
    rows: list[int] = []
    short: dict[str, list[tuple[list[str], int]]] = {}
    for row, text in enumerate(texts):
        words = _words(text)
        # Lengths are in half words: two characters of an unspaced script make one word.
        if words and sum(map(_half_words, words)) < 2 * size:
            short.setdefault(words[0], []).append((words, row))
        hashes += map(digest, own := _grams(words, size))
        rows += [row] * len(own)
    joined = np.array(hashes, np.uint64)
    order = np.argsort(joined, kind="stable")
    return BenchmarkIndex(name, len(texts), joined[order], np.array(rows, np.int32)[order], short)


def _words(text: str) -> list[str]:
    """Split a text into lower-case words; a character of an unspaced script is an element too."""
    if not text.isascii():
        # NFKD maps full-width and styled letters to plain ones and splits accents off (category M).
        # ASCII text skips it.
        plain = unicodedata.normalize("NFKD", text)
        text = "".join(sign for sign in plain if not unicodedata.category(sign).startswith("M"))
    return [word[0] for word in _WORD.finditer(text.lower())]


def _half_words(word: str) -> int:
    """Return a word's length in half words: 1 for a character of an unspaced script, else 2."""
    return 1 if _UNSPACED_CHARACTER.fullmatch(word) else 2


def _grams(words: Sequence[str], size: int) -> set[str]:
    """Return the word n-grams of a text, n = `size`; a shorter text is one n-gram.

    ["a", "b", "c"], 2 -> {"a b", "b c"}
    """
    # A sliding window: `length` is that of words[start:end], in half words.
    lengths = [_half_words(word) for word in words]
    grams, end, length = set(), 0, 0
    for start in range(len(words)):
        while end < len(words) and length < 2 * size:
            length += lengths[end]
            end += 1
        # The words left are fewer than n. Only a whole text (start = 0) may be that short.
        if length < 2 * size and start:
            break
        grams.add(" ".join(words[start:end]))
        length -= lengths[start]
    return grams


def _hashes(grams: Sequence[str]) -> NDArray[np.uint64]:
    """Hash each n-gram: [N]."""
    return np.array([digest(gram) for gram in grams], dtype=np.uint64)


def decontaminate(
    table: ProblemTable, benchmarks: Sequence[BenchmarkIndex], *, size: int
) -> tuple[ProblemTable, dict[str, dict[str, int]]]:
    """Drop every problem that shares an n-gram with any benchmark.

    Args:
        size: words per n-gram, the same as in the benchmarks' index.

    Returns:
        The remaining problems, and the overlap by benchmark: `train_rows` training problems share
        an n-gram with `benchmark_rows` of its `benchmark_size` problems.
    """
    # By benchmark: its rows with a shared n-gram, and the number of training problems with one.
    hits: dict[str, set[int]] = {benchmark.name: set() for benchmark in benchmarks}
    train_rows: Counter[str] = Counter()

    def leak(_: int, problem: Problem) -> tuple[str, str] | None:
        fault, words = None, _words(problem.problem)
        # Sorted, so that every run reports the same n-gram.
        grams = sorted(_grams(words, size))
        hashes = _hashes(grams)
        for benchmark in benchmarks:
            if texts := benchmark.shared(words, grams, hashes):
                # No early exit after the first benchmark: the metrics count every overlap.
                train_rows[benchmark.name] += 1
                hits[benchmark.name] |= texts.keys()
                text = next(iter(texts.values()))
                fault = fault or ("contaminated", f"shares with {benchmark.name}: {text}")
        return fault

    return table.keep(leak), {
        each.name: {
            "train_rows": train_rows[each.name],
            "benchmark_rows": len(hits[each.name]),
            "benchmark_size": each.num_problems,
        }
        for each in benchmarks
    }


def is_numeric(reference: str) -> bool:
    """Return True for one integer or decimal, with or without thousands separators."""
    return bool(_NUMERIC.fullmatch(reference.strip()))


def check_numeric(_: int, problem: Problem) -> tuple[str, str] | None:
    """Check for `ProblemTable.keep`: drop a problem if its reference is no number."""
    return None if is_numeric(problem.reference) else ("answer_not_numeric", problem.reference)


def check_correct(_: int, problem: Problem) -> tuple[str, str] | None:
    """Check for `ProblemTable.keep`: drop a problem if its solution contradicts its reference.

    A problem without a solution is kept. In a solution without a marked answer the last number
    counts, which suits solutions of models. GSM8K's own solutions have lost their `####` line
    before this check, which would drop 3 % of their rows although they are right.
    """
    parts = response_parts(problem.solution) if RESPONSE in problem.tags else None
    if parts:
        # Of a box inside the answer tags, only the content is the answer.
        box = last_box(parts[1])
        answer: str | None = box.content if box else parts[1]
    else:
        answer = extract_answer(problem.solution) if problem.solution else problem.reference
    if is_equivalent(reference=problem.reference, answer=answer):
        return None
    detail = f"the solution's answer is {answer}, the reference {problem.reference}"
    return "solution_not_correct", detail
