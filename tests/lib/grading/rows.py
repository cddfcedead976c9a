"""Rows of a completions file, as `grade` reads them."""

from typing import Any


def written_row(completion: str, *, reference: str, **changes) -> dict[str, Any]:
    """Write a greedy completion of a problem that is named by its reference."""
    return {
        "benchmark": "held_out", "mode": "greedy", "checkpoint": "sft", "sample": 0,
        "problem_id": reference, "problem": "6 · 12?", "reference": reference, "subject": "sums",
        "level": 1, "tags": [], "prompt": [], "completion": completion, "token_ids": [1],
        "finish": "eos", "prompt_format": {"name": "working_out", "tags": []},
        "sampling": {"max_new_tokens": 16}, **changes,
    }  # fmt: skip
