"""What the public course reads in responses on MMLU and GSM8K."""

from collections.abc import Mapping
from typing import Any

from lib.verifier import parse_gsm8k_number, parse_mmlu_letter


def parse_mmlu_response(mmlu_example: Mapping[str, Any], model_output: str) -> str | None:
    """The option that a response chooses, "A" to "D", or None where it chooses none.

    Args:
        mmlu_example: "question", "options" and the like; not read: a letter is what is asked for.
    """
    return parse_mmlu_letter(model_output)


def parse_gsm8k_response(model_output: str) -> str | None:
    """The last number in a response, or None where there is none."""
    return parse_gsm8k_number(model_output)
