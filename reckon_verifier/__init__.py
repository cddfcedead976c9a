r"""The verifier: extract the final answer of a completion, and decide whether it is right.

`… so \boxed{0.5}.` gives the answer `0.5`, which equals the reference `\frac12`. Rewards and
accuracies are computed with it (README.md).
"""

from reckon_verifier.adapters import accuracy_reward, parse, verify
from reckon_verifier.choices import parse_gsm8k_number, parse_mmlu_letter
from reckon_verifier.equivalence import compare, is_equivalent, is_placeholder, reference_problem
from reckon_verifier.extract import extract_answer
from reckon_verifier.rules import Verdict
from reckon_verifier.symbolic import counters, reset_counters

__all__ = [
    "Verdict",
    "accuracy_reward",
    "compare",
    "counters",
    "extract_answer",
    "is_equivalent",
    "is_placeholder",
    "parse",
    "parse_gsm8k_number",
    "parse_mmlu_letter",
    "reference_problem",
    "reset_counters",
    "verify",
]
