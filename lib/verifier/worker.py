"""The symbolic worker: `python -m lib.verifier.worker` answers questions line by line.

A question is a JSON list `[reference, answer]` of normalized texts, an answer `[equal, step]`.
It imports neither torch nor transformers, holds its memory to `MEMORY_BYTES`, and ends when its
standard input does. `worker_client` starts it and kills it when it is late.
"""

import json
import resource
import sys

from lib.verifier.parse import parse
from lib.verifier.scalars import Undecided
from lib.verifier.symbolic import same_symbolic
from lib.verifier.tree import TooHard, Unparsable

MEMORY_BYTES = 512 * 1024 * 1024
"""Address space; what needs more ends in a MemoryError, which counts as undecided."""


def decide(reference: str, answer: str) -> tuple[bool, str]:
    """Whether the two are equal, and how that was decided."""
    try:
        return same_symbolic(parse(reference), parse(answer)), "symbolic"
    except (Undecided, Unparsable, TooHard):
        return False, "undecided"
    except (ArithmeticError, AttributeError, MemoryError, NotImplementedError, RecursionError):
        return False, "symbolic failure"
    except (LookupError, TypeError, ValueError):
        return False, "symbolic failure"


def main() -> None:
    """Answer until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(decide(*json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
