"""Filters of training sets apart from length: duplicates, leaks, unwanted answers.

Near duplicates: the sets of word 5-grams have a Jaccard similarity of at least a threshold, and the
first problem of each group stays. MinHash with locality-sensitive hashing proposes candidates
(Broder 1997; `datasketch`), and the exact similarity decides. Hashing therefore drops no row below
the threshold, and misses about one in a hundred pairs that are exactly at it. A changed word
changes up to five 5-grams: at a threshold of 0.8, two problems that differ in one number are near
duplicates only from 49 words on.

A training problem is contaminated by a benchmark if any run of n words (`contamination_ngram`, such
as 8) of its text occurs in a benchmark problem, or if it contains a whole benchmark problem of
fewer than n words. Words are lower-cased runs of letters and digits, so that spacing, punctuation,
case, accents and variant characters hide no leak. In scripts without spaces (Chinese, Japanese,
Thai, ...) two characters, about the length of a word, count as one word.
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
from lib.prompts.boxes import last_box
from lib.prompts.targets import response_parts
from reckon_verifier import extract_answer, is_equivalent

SHINGLE_SIZE = 5
# The estimate's standard error is at most 0.5 / sqrt(64) = 0.06, below the margin.
NUM_PERMUTATIONS = 64
CANDIDATE_MARGIN = 0.1
"""The candidate threshold lies this much below the exact one, so that hashing misses few pairs."""
MARKS = 2**22
"""Places of a table in which few texts that no benchmark has are marked."""
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
# The same words of a text in ASCII, in a quarter of the time.
_ASCII_WORD = re.compile(r"[a-z0-9]+")
# "1,234", "-3.5", "$12", "1e6", ".5": digits before or after the point, or both: `(?=\.?\d)`.
_NUMERIC = re.compile(
    r"[-+−]?\$?(?=\.?\d)(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:e[-+]?\d+)?", re.I
)


def digest(text: str) -> int:
    """Hash a text to 64 bits, the same in every process, unlike Python's own hash."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def drop_exact_duplicates(table: ProblemTable) -> ProblemTable:
    """Keep the first of all problems with the same words; spacing does not count.

    A copy with another answer has a reason of its own: one of the two is wrong.
    """
    # `problem.id`, a hash of the problem's words → first problem with them: row, reference.
    firsts: dict[str, tuple[int, str]] = {}

    def repeats_earlier(index: int, problem: Problem) -> tuple[str, str] | None:
        first, reference = firsts.setdefault(problem.id, (index, problem.reference))
        if first == index:
            return None
        if problem.reference != reference and not is_equivalent(
            reference=reference, answer=problem.reference
        ):
            detail = f"the answer is {problem.reference}, and in row {first + 1} {reference}"
            return "copy_with_other_answer", detail
        return "exact_duplicate", f"same words as row {first + 1}"

    return table.keep(repeats_earlier)


def drop_near_duplicates(table: ProblemTable, *, similarity: float) -> ProblemTable:
    """Drop each problem that is nearly the same as an earlier one that is kept.

    Args:
        table: problems, the preferred ones first.
        similarity: Jaccard similarity of word 5-grams from which a pair counts as near duplicates,
            in (0, 1).
    """
    # Imported here: with scipy it takes half a second.
    from datasketch import MinHash, MinHashLSH

    # Index of the problems kept so far: row → MinHash signature. Signatures only estimate the
    # similarity. So the index finds candidates, from an estimate somewhat below `similarity` (and
    # above 0), and prefers a false candidate to a missed one (`weights`): the exact similarity of
    # the few candidates is computed below.
    kept = MinHashLSH(
        threshold=max(similarity - CANDIDATE_MARGIN, CANDIDATE_MARGIN),
        num_perm=NUM_PERMUTATIONS,
        weights=LSH_WEIGHTS,
    )

    # A fixed seed, so that every run hashes with the same permutations, made only once.
    blank = MinHash(num_perm=NUM_PERMUTATIONS, seed=1)

    def resembles_kept(index: int, problem: Problem) -> tuple[str, str] | None:
        # The set of word 5-grams.
        shingles = _grams(_words(problem.problem), SHINGLE_SIZE)
        signature = blank.copy()
        signature.update_batch([shingle.encode() for shingle in shingles])
        # `query` returns the rows of similar signatures. Sorted, so that the earliest match is
        # reported, whatever their order.
        for candidate in sorted(kept.query(signature)):
            text = table.rows[candidate]["problem"]
            others = _grams(_words(text), SHINGLE_SIZE)
            # Jaccard similarity. Two texts without words are not alike: 0 / 1.
            exact = len(shingles & others) / max(len(shingles | others), 1)
            if exact >= similarity:
                return "near_duplicate", f"similarity {exact:.3f} to: {text}"[:300]
        # Row indices are unique, so that the check for known keys is skipped.
        kept.insert(index, signature, check_duplication=False)
        return None

    return table.keep(resembles_kept)


@dataclasses.dataclass(frozen=True, eq=False)
class BenchmarkIndex:
    """The n-grams of one benchmark, 12 bytes each, and a table of them.

    Attributes:
        name: the benchmark's name.
        num_problems: number of its problems.
        hashes: [N] hash of every n-gram of every problem, ascending.
        rows: [N] the row of each n-gram's problem, counted from 0.
        short: problems of fewer than n words: first word → (all words, row) of each.
        marks: [MARKS] 1 at `hash` of every n-gram: a quick look before the slower `digest`.
    """

    name: str
    num_problems: int
    hashes: NDArray[np.uint64]
    rows: NDArray[np.int32]
    short: Mapping[str, Sequence[tuple[list[str], int]]]
    marks: NDArray[np.uint8]

    def shared(
        self, words: Sequence[str], grams: Sequence[str], hashes: NDArray[np.uint64]
    ) -> dict[int, str]:
        """Return the benchmark problems that share text with a training problem.

        Args:
            words: the words of the training problem.
            grams: its n-grams that may be some benchmark's.
            hashes: the hash of each n-gram.

        Returns:
            Row of the benchmark problem → one text that both share: a whole short problem, or an
            n-gram.
        """
        shared_texts: dict[int, str] = {}
        # Benchmark problems of fewer than n words, if the training problem contains them whole.
        # `self.short` has them by their first word.
        for start, word in enumerate(words):
            for short, row in self.short.get(word, ()):
                if words[start : start + len(short)] == short:
                    shared_texts[row] = " ".join(short)
        # `self.hashes` is ascending: by binary search, the benchmark's entries with the hash of
        # n-gram i are starts[i]:ends[i]. Most of these ranges are empty.
        starts, ends = (np.searchsorted(self.hashes, hashes, side) for side in ("left", "right"))
        for i in np.flatnonzero(starts < ends):
            for row in self.rows[starts[i] : ends[i]].tolist():
                shared_texts.setdefault(row, grams[i])
        return shared_texts


def index_benchmark(name: str, texts: Sequence[str], *, size: int) -> BenchmarkIndex:
    """Index the n-grams of a benchmark's problem texts by their hashes, in ascending order.

    Args:
        size: n, words per n-gram. Texts with fewer words are also listed whole in `short`: a
            training problem that contains one is contaminated too.
    """
    marks = np.zeros(MARKS, np.uint8)
    # Hash of each n-gram of each text, and the row of its text.
    hashes: list[int] = []
    rows: list[int] = []
    # First word → (all words, row) of each text of fewer than n words.
    short: dict[str, list[tuple[list[str], int]]] = {}
    for row, text in enumerate(texts):
        words = _words(text)
        # Fewer than n words. They are counted in half words, since two characters of an unspaced
        # script (Chinese) count as one word: 1 for such a character, 2 for any other word.
        if words and sum(map(_half_words, words)) < 2 * size:
            short.setdefault(words[0], []).append((words, row))
        # A text of fewer than n words gives one n-gram: all its words.
        grams = _grams(words, size)
        hashes += map(digest, grams)
        marks[[hash(gram) % MARKS for gram in grams]] = 1
        rows += [row] * len(grams)
    # Sorted by hash for the binary search in `BenchmarkIndex.shared`.
    unordered = np.array(hashes, np.uint64)
    order = np.argsort(unordered, kind="stable")
    return BenchmarkIndex(
        name, len(texts), unordered[order], np.array(rows, np.int32)[order], short, marks
    )


def _words(text: str) -> list[str]:
    """Split a text into lower-case words without accents, and Chinese text into characters.

    "Let é=3, 中文" -> ["let", "e", "3", "中", "文"]

    `_half_words` later counts a character like 中 as half a word.
    """
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    # NFKD maps full-width and styled letters to plain ones, and splits accents off: they become
    # characters of category M, which are removed.
    plain = unicodedata.normalize("NFKD", text)
    text = "".join(char for char in plain if not unicodedata.category(char).startswith("M"))
    # `_WORD` is one character of an unspaced script, or a run of other letters and digits. [0] is
    # the whole match.
    return [word[0] for word in _WORD.finditer(text.lower())]


def _half_words(word: str) -> int:
    """Return a word's length in half words: 1 for a character of an unspaced script, else 2."""
    return 1 if _UNSPACED_CHARACTER.fullmatch(word) else 2


def _grams(words: Sequence[str], size: int) -> set[str]:
    """Return the word n-grams of a text, n = `size`; a text of fewer words is one n-gram.

    ["a", "b", "c"], 2 -> {"a b", "b c"}; ["a"], 2 -> {"a"}

    Two characters of an unspaced script (Chinese) count as one word.
    """
    if len(words) >= size and all(map(str.isascii, words)):
        return set(map(" ".join, zip(*(words[start:] for start in range(size)), strict=False)))
    # In half words: 1 for a character of an unspaced script, 2 for any other word. An n-gram has at
    # least 2 n half words.
    lengths = [_half_words(word) for word in words]
    # `length` is that of words[start:end]. The start moves word by word, and the end as far as it
    # is needed for a full n-gram.
    grams, end, length = set(), 0, 0
    for start in range(len(words)):
        while end < len(words) and length < 2 * size:
            length += lengths[end]
            end += 1
        # The text ends before the n-gram is full. Only a whole text (start = 0) may be that short.
        if length < 2 * size and start:
            break
        grams.add(" ".join(words[start:end]))
        length -= lengths[start]
    return grams


def decontaminate(
    table: ProblemTable, benchmarks: Sequence[BenchmarkIndex], *, size: int
) -> tuple[ProblemTable, dict[str, dict[str, int]]]:
    """Drop each problem that shares an n-gram with a benchmark, or contains a short problem of it.

    Args:
        table: training problems.
        size: words per n-gram, the same as in the benchmarks' index.

    Returns:
        The remaining problems; and for each benchmark's name the overlap before the drop:
        `train_rows` training problems share text with `benchmark_rows` of its `benchmark_size`
        problems.
    """
    # Benchmark → rows of its problems that share text with any training problem.
    benchmark_rows: dict[str, set[int]] = {benchmark.name: set() for benchmark in benchmarks}
    # Benchmark → number of training problems that share text with it.
    train_rows: Counter[str] = Counter()
    marks = np.zeros(MARKS, np.uint8)
    for benchmark in benchmarks:
        marks |= benchmark.marks
    # Faster to read item by item than an array.
    is_marked = marks.tobytes()

    def contaminated(_: int, problem: Problem) -> tuple[str, str] | None:
        words = _words(problem.problem)
        # Sorted, so that every run reports the same n-gram.
        grams = sorted(gram for gram in _grams(words, size) if is_marked[hash(gram) % MARKS])
        hashes = np.array([digest(gram) for gram in grams], dtype=np.uint64)
        fault = None
        for benchmark in benchmarks:
            # Row of the benchmark problem → shared text.
            if texts := benchmark.shared(words, grams, hashes):
                train_rows[benchmark.name] += 1
                benchmark_rows[benchmark.name] |= texts.keys()
                text = next(iter(texts.values()))
                # The detail names the first benchmark. The loop goes on to count the others.
                fault = fault or ("contaminated", f"shares with {benchmark.name}: {text}")
        return fault

    # The counts are complete only after `keep`, which calls `contaminated` for every problem.
    remaining = table.keep(contaminated)
    return remaining, {
        each.name: {
            "train_rows": train_rows[each.name],
            "benchmark_rows": len(benchmark_rows[each.name]),
            "benchmark_size": each.num_problems,
        }
        for each in benchmarks
    }


def is_numeric(reference: str) -> bool:
    """Return True for one integer or decimal, with or without thousands separators."""
    return bool(_NUMERIC.fullmatch(reference.strip()))


def check_numeric(_: int, problem: Problem) -> tuple[str, str] | None:
    """Return reason and detail to drop a problem if its reference is no number, else None."""
    return None if is_numeric(problem.reference) else ("answer_not_numeric", problem.reference)


def check_correct(_: int, problem: Problem) -> tuple[str, str] | None:
    """Return reason and detail to drop a problem if its solution contradicts its reference.

    Otherwise return None. A problem without a solution is kept.

    If a solution marks no answer, its last formula or number counts. That suits solutions of
    models, but not GSM8K's own: they lose their `####` line when they are converted, and 3 % of
    them would be dropped although they are right.
    """
    # RESPONSE: the solution is a model's whole response, which is split into (reasoning, answer);
    # None if it marks no answer.
    parts = response_parts(problem.solution) if RESPONSE in problem.tags else None
    if parts:
        # `<answer>\boxed{72}</answer>`: only the content of the box is the answer.
        box = last_box(parts[1])
        answer: str | None = box.content if box else parts[1]
    elif problem.solution:
        answer = extract_answer(problem.solution)
    else:
        # Without a solution nothing contradicts the reference: it is compared with itself.
        answer = problem.reference
    if is_equivalent(reference=problem.reference, answer=answer, problem=problem.problem):
        return None
    detail = f"the solution's answer is {answer}, the reference {problem.reference}"
    return "solution_not_correct", detail
