"""Fixtures of the engines' contract."""

from pathlib import Path

import pytest

from lib.engines.base import encode
from lib.engines.policy import load_merged, load_tokenizer
from lib.problems.generated import GeneratedSets
from lib.prompts import prompt_format

pytest.register_assert_rewrite("tests.lib.engines.contract")


@pytest.fixture(scope="session")
def plain(base: Path):
    """The checkpoint as transformers loads it: logits come from forward passes without a cache."""
    return load_merged(base, base=base, dtype="float32", attention="sdpa").eval()


@pytest.fixture(scope="session")
def prompts(base: Path, sets: GeneratedSets) -> list[list[int]]:
    """Six prompts of several lengths, not in their order."""
    chosen = prompt_format("working_out")
    asked = [chosen.prompt(problem.problem, system="") for problem in sets.grpo[:6]]
    return encode(load_tokenizer(base), asked)
