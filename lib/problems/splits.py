"""Training and validation by content hash.

Which side a problem is on depends on its words alone: adding rows moves none of the others, the
same problem in two sources is on the same side, and so is one that is in the SFT and GRPO data.
"""

from lib.problems.words import digest

_RANGE = 2**64


def position(problem_id: str, *, salt: str) -> float:
    """A place in [0, 1) that `problem_id` has for this purpose; even over all problems."""
    return digest(f"{salt}:{problem_id}") / _RANGE


def in_validation(problem_id: str, *, share: float) -> bool:
    """Whether a problem belongs to the `share` that is held back; a larger share only adds."""
    return position(problem_id, salt="validation") < share
