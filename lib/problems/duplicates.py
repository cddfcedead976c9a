"""Exact and near duplicates: of each group of like problems the first stays.

Problems are near duplicates where the sets of their word 5-grams have a Jaccard similarity of at
least a threshold. Candidates come from MinHash with locality-sensitive hashing (Broder 1997;
`datasketch`); each is then decided by the exact similarity, so that hashing drops no row below the
threshold, and misses about one pair in a hundred that is right at it. A problem whose numbers alone
differ is another problem: each changed word changes five of the 5-grams.
"""

from collections.abc import Sequence

from lib.problems.drops import Drops
from lib.problems.store import ProblemTable
from lib.problems.words import ngrams, words_of_any_script

SHINGLE_SIZE = 5
NUM_PERMUTATIONS = 64
CANDIDATE_MARGIN = 0.1
"""Candidates are looked for this much below the threshold, where hashing still finds the pairs."""
MISS_COST = (0.1, 0.9)
"""Weight of a needless candidate against a missed one: the former costs one exact comparison."""

EXACT = "exact_duplicate"
NEAR = "near_duplicate"


def drop_exact_duplicates(table: ProblemTable, *, drops: Drops) -> ProblemTable:
    """Keep the first problem of each content hash (words alike, whatever case and spacing)."""
    first: dict[str, int] = {}
    for index, problem in enumerate(table):
        if problem.id in first:
            detail = f"same words as row {first[problem.id] + 1}"
            drops.add(EXACT, row=problem.id, detail=detail, text=problem.problem)
        else:
            first[problem.id] = index
    return table if len(first) == len(table) else table.select(list(first.values()))


def drop_near_duplicates(table: ProblemTable, *, similarity: float, drops: Drops) -> ProblemTable:
    """Keep problems that no earlier kept one resembles.

    Args:
        table: problems in the order of preference.
        similarity: least Jaccard similarity of word 5-grams that makes a pair near duplicates, in
            (0, 1).
        drops: where the others are counted.
    """
    # Imported here, for it takes half a second with scipy.
    from datasketch import MinHash, MinHashLSH

    kept: list[int] = []
    index_of_kept = MinHashLSH(
        threshold=max(similarity - CANDIDATE_MARGIN, CANDIDATE_MARGIN),
        num_perm=NUM_PERMUTATIONS,
        weights=MISS_COST,
    )
    for index, text in enumerate(table.column("problem")):
        shingles = _shingles(text)
        signature = MinHash(num_perm=NUM_PERMUTATIONS, seed=1)
        signature.update_batch([shingle.encode() for shingle in shingles])
        twin = _twin(table, index_of_kept.query(signature), shingles, similarity)
        if twin is None:
            index_of_kept.insert(index, signature, check_duplication=False)
            kept.append(index)
        else:
            other, measured = twin
            detail = f"similarity {measured:.3f} to: {table.text(other)}"
            drops.add(NEAR, row=table.rows[index]["id"], detail=detail[:300], text=text)
    return table if len(kept) == len(table) else table.select(kept)


def _twin(
    table: ProblemTable, candidates: Sequence[int], shingles: set[str], similarity: float
) -> tuple[int, float] | None:
    """The earliest candidate that is as similar as asked for, and how similar it is."""
    for other in sorted(candidates):
        measured = jaccard(shingles, _shingles(table.text(other)))
        if measured >= similarity:
            return other, measured
    return None


def _shingles(text: str) -> set[str]:
    return ngrams(words_of_any_script(text), size=SHINGLE_SIZE)


def jaccard(left: set[str], right: set[str]) -> float:
    """Shared elements over all elements; 0 where there are none: signs alone are nobody's twin."""
    union = len(left | right)
    return len(left & right) / union if union else 0.0
