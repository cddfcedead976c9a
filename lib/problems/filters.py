"""What goes from a training set whatever its lengths: duplicates, leaks, unwanted answers.

Near duplicates have sets of word 5-grams whose Jaccard similarity is at least a threshold; of each
group of like problems the first stays. Candidates come from MinHash with locality-sensitive hashing
(Broder 1997; `datasketch`); each is then decided by the exact similarity, so that hashing drops no
row below the threshold, and misses about one pair in a hundred that is right at it. A problem whose
numbers only differ is another problem: each changed word changes five of the 5-grams.

A training problem is contaminated by a benchmark if any run of n (8) words of its text occurs in a
benchmark problem; a benchmark problem of fewer than n words is matched as a whole. Words are
lower-cased runs of letters and digits, as others count them, so that spacing, punctuation and case
do not hide a leak; nor do accents and other forms of a character. Of scripts that write no spaces
(Chinese, Japanese, Thai, ...) two characters count as a word, which is about what a word has there.
"""

import dataclasses
import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from lib.artifacts.problems import RESPONSE, Problem
from lib.problems.store import ProblemTable
from lib.prompts.formats import last_box, response_parts
from lib.verifier import extract_answer, is_equivalent

SHINGLE_SIZE = 5
NUM_PERMUTATIONS = 64
CANDIDATE_MARGIN = 0.1
"""Candidates are looked for this much below the threshold, where hashing still finds the pairs."""
MISS_COST = (0.1, 0.9)
"""Weight of a needless candidate against a missed one: the former costs one exact comparison."""

_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Myanmar, Khmer
    r"\u3005-\u3007\u3041-\u31ff\u3400-\u9fff\U00020000-\U0003ffff"  # kana and Han
)
_WORD = re.compile(rf"([{_UNSPACED}])|[^\W_{_UNSPACED}]+")
_NUMERIC = re.compile(r"[-+−]?\$?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:e[-+]?\d+)?", re.I)


def digest(text: str) -> int:
    """64 bits of a hash that is the same in every process, unlike Python's own."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def drop_exact_duplicates(table: ProblemTable) -> ProblemTable:
    """Keep the first problem of each content hash (words alike, whatever case and spacing)."""
    first: dict[str, int] = {}

    def repeated(index: int, problem: Problem) -> tuple[str, str] | None:
        earlier = first.setdefault(problem.id, index)
        same = f"same words as row {earlier + 1}"
        return ("exact_duplicate", same) if earlier < index else None

    return table.keep(repeated)


def drop_near_duplicates(table: ProblemTable, *, similarity: float) -> ProblemTable:
    """Keep problems that no earlier kept one resembles.

    Args:
        table: problems in the order of preference.
        similarity: least Jaccard similarity of word 5-grams that makes a pair near duplicates, in
            (0, 1).
    """
    # Imported here, for it takes half a second with scipy.
    from datasketch import MinHash, MinHashLSH

    kept = MinHashLSH(
        threshold=max(similarity - CANDIDATE_MARGIN, CANDIDATE_MARGIN),
        num_perm=NUM_PERMUTATIONS,
        weights=MISS_COST,
    )

    def resembles(index: int, problem: Problem) -> tuple[str, str] | None:
        shingles = _grams(problem.problem, SHINGLE_SIZE)
        signature = MinHash(num_perm=NUM_PERMUTATIONS, seed=1)
        signature.update_batch([shingle.encode() for shingle in shingles])
        for candidate in sorted(kept.query(signature)):
            text = table.rows[candidate]["problem"]
            exact = jaccard(shingles, _grams(text, SHINGLE_SIZE))
            if exact >= similarity:
                return "near_duplicate", f"similarity {exact:.3f} to: {text}"[:300]
        kept.insert(index, signature, check_duplication=False)
        return None

    return table.keep(resembles)


def jaccard(left: set[str], right: set[str]) -> float:
    """Shared elements over all elements; 0 where there are none: no words resemble nothing."""
    union = len(left | right)
    return len(left & right) / union if union else 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class BenchmarkIndex:
    """The n-grams of one benchmark, 12 bytes each.

    Attributes:
        name: the benchmark's.
        num_problems: how many it has.
        hashes: [N] of every n-gram of every problem, ascending.
        rows: [N] the problem that each n-gram is of.
    """

    name: str
    num_problems: int
    hashes: NDArray[np.uint64]
    rows: NDArray[np.int32]

    def hits(self, hashes: NDArray[np.uint64]) -> set[int]:
        """Benchmark rows that have an n-gram of one of these hashes."""
        starts = np.searchsorted(self.hashes, hashes, side="left")
        ends = np.searchsorted(self.hashes, hashes, side="right")
        hit = starts < ends
        ranges = zip(starts[hit], ends[hit], strict=True)
        return {int(row) for start, end in ranges for row in self.rows[start:end]}


def index_benchmark(name: str, texts: Iterable[str], *, size: int) -> BenchmarkIndex:
    """The n-grams of a benchmark's problem texts; only hashes are kept."""
    hashes, rows = [np.empty(0, np.uint64)], [np.empty(0, np.int32)]
    for row, text in enumerate(texts):
        hashes.append(_hashes(_grams(text, size)))
        rows.append(np.full(len(hashes[-1]), row, np.int32))
    order = np.argsort(joined := np.concatenate(hashes), kind="stable")
    return BenchmarkIndex(name, len(hashes) - 1, joined[order], np.concatenate(rows)[order])


def _grams(text: str, size: int) -> set[str]:
    """Runs of `size` words; of fewer words, all of them as one."""
    if not text.isascii():
        plain = unicodedata.normalize("NFKD", text)
        text = "".join(sign for sign in plain if not unicodedata.category(sign).startswith("M"))
    words = list(_WORD.finditer(text.lower()))
    # In half words: see the module.
    lengths = [1 if word[1] else 2 for word in words]
    grams, end, length = set(), 0, 0
    for start in range(len(words)):
        while end < len(words) and length < 2 * size:
            length += lengths[end]
            end += 1
        if length < 2 * size and start:
            break
        grams.add(" ".join(word[0] for word in words[start:end]))
        length -= lengths[start]
    return grams


def _hashes(grams: Iterable[str]) -> NDArray[np.uint64]:
    return np.array([digest(gram) for gram in grams], dtype=np.uint64)


def decontaminate(
    table: ProblemTable, benchmarks: Sequence[BenchmarkIndex], *, size: int
) -> tuple[ProblemTable, dict[str, dict[str, int]]]:
    """Drop every problem that shares an n-gram with any benchmark.

    Args:
        size: words of an n-gram, as the benchmarks were indexed with.

    Returns:
        The others, and by benchmark the problems on both sides that share one with the other side
        (`train_rows`, `benchmark_rows`), and how many the benchmark has.
    """
    hits: dict[str, set[int]] = {benchmark.name: set() for benchmark in benchmarks}
    train_rows: Counter[str] = Counter()

    def leaks(index: int, problem: Problem) -> tuple[str, str] | None:
        fault, grams = None, _grams(problem.problem, size)
        hashes = _hashes(grams)
        for benchmark in benchmarks:
            if rows := benchmark.hits(hashes):
                train_rows[benchmark.name] += 1
                hits[benchmark.name] |= rows
                shared = next(gram for gram in sorted(grams) if benchmark.hits(_hashes([gram])))
                fault = fault or ("contaminated", f"shares with {benchmark.name}: {shared}")
        return fault

    return table.keep(leaks), {
        name: {
            "train_rows": train_rows[name],
            "benchmark_rows": len(hits[name]),
            "benchmark_size": num_problems,
        }
        for name, num_problems in ((each.name, each.num_problems) for each in benchmarks)
    }


def is_numeric(reference: str) -> bool:
    """Whether an answer is one integer or decimal, with or without thousands separators."""
    text = reference.strip()
    return any(sign.isdigit() for sign in text) and bool(_NUMERIC.fullmatch(text))


def not_numeric(_: int, problem: Problem) -> tuple[str, str] | None:
    """For `keep`: whether the reference is no number."""
    return None if is_numeric(problem.reference) else ("answer_not_numeric", problem.reference)


def not_correct(_: int, problem: Problem) -> tuple[str, str] | None:
    """For `keep`: whether the worked solution comes to something else than the reference.

    A problem without a solution stays: there is nothing in it to be wrong. Of a solution that marks
    no answer the last number counts, which suits model-written ones; GSM8K's own lose their `####`
    line before this and would lose 3 % of the rows here without being wrong.
    """
    parts = response_parts(problem.solution) if RESPONSE in problem.tags else None
    if parts:
        # The tags may hold a box, which is one more mark and no part of the answer.
        box = last_box(parts[1])
        answer: str | None = box.content if box else parts[1]
    else:
        answer = extract_answer(problem.solution) if problem.solution else problem.reference
    if is_equivalent(reference=problem.reference, answer=answer):
        return None
    detail = f"the solution comes to {answer}, the reference is {problem.reference}"
    return "solution_not_correct", detail
