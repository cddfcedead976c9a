"""The verifier: extract a completion's answer, and decide whether it is right
(docs/verifier.md).
"""

from lib.verifier.equivalence import compare, is_equivalent, reference_problem
from lib.verifier.extract import extract_answer, parse_gsm8k_number, parse_mmlu_letter
from lib.verifier.rules import Verdict
from lib.verifier.symbolic import counters, reset_counters

__all__ = [
    "Verdict",
    "compare",
    "counters",
    "extract_answer",
    "is_equivalent",
    "parse_gsm8k_number",
    "parse_mmlu_letter",
    "reference_problem",
    "reset_counters",
]
