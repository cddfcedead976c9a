"""Words and n-grams of a text, the units of near duplicates and of contamination.

Contamination is counted in Latin words, as others count it; likeness in words of any script.
"""

import hashlib
import re
from collections.abc import Sequence

_LATIN = re.compile(r"[a-z0-9]+")
_ANY_SCRIPT = re.compile(r"[a-z0-9]+|[^\W_]")


def words(text: str) -> list[str]:
    """Lower-cased runs of ASCII letters and digits."""
    return _LATIN.findall(text.lower())


def words_of_any_script(text: str) -> list[str]:
    """The same, and each letter of another script by itself: some write no spaces."""
    return _ANY_SCRIPT.findall(text.lower())


def ngrams(found: Sequence[str], *, size: int) -> set[str]:
    """Runs of `size` words; of fewer words, all of them as one."""
    last = max(len(found) - size, 0)
    return {" ".join(found[start : start + size]) for start in range(last + 1)} - {""}


def digest(text: str) -> int:
    """64 bits of a hash that is the same in every process, unlike Python's own."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
