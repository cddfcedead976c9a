"""Pairs of completions for tests of DPO."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lib.artifacts.problems import Problem
from lib.engines.base import encode
from lib.engines.policy import load_tokenizer
from lib.prompts import PromptFormat
from lib.prompts.formats import conversation


def pairs_of(
    problems: Sequence[Problem], base: Path, prompt_format: PromptFormat
) -> list[dict[str, Any]]:
    """The reference against a wrong number, as an engine would have generated them."""
    tokenizer = load_tokenizer(base)
    prompts = encode(tokenizer, [conversation(p.problem, system="") for p in problems])

    def ids(answer: str) -> list[int]:
        text = prompt_format.target(solution="", reference=answer) + tokenizer.eos_token
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    return [
        {"prompt_ids": prompt, "chosen_ids": ids(p.reference), "rejected_ids": ids("7 and 7")}
        for prompt, p in zip(prompts, problems, strict=True)
    ]
