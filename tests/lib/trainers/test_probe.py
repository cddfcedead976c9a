"""The probe finds the largest micro-batch that memory holds, and says so when none does."""

import resource
from pathlib import Path

import pytest

from lib.errors import UserError
from lib.params import Params
from lib.problems.generated import GeneratedSets
from lib.problems.schema import write_problems
from lib.problems.tokens import rendering_of, token_counter
from lib.prompts import prompt_format
from lib.trainers.probe import batch_of, divisors, longest, probe

MIB = 1024**2


def test_sizes_tile_the_batch_from_the_largest() -> None:
    assert divisors(12) == [12, 6, 4, 3, 2, 1]


def test_less_memory_holds_a_smaller_batch_and_the_limit_is_lifted_again(
    smoke: Params, base: Path
) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    plenty = probe(smoke, "sft", base=base, tokens=2048, limit=20_000 * MIB)
    scarce = probe(smoke, "sft", base=base, tokens=2048, limit=150 * MIB)
    assert plenty == batch_of(smoke, "sft") == 16
    assert scarce < plenty
    assert plenty % scarce == 0
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_nothing_fits_is_an_error_that_says_what_to_shorten(smoke: Params, base: Path) -> None:
    with pytest.raises(UserError, match="not even one row of 100000 tokens fits; shorten"):
        probe(smoke, "grpo", base=base, tokens=100_000, limit=20 * MIB)


def test_the_longest_row_is_measured_with_all_that_may_be_generated(
    smoke: Params, base: Path, sets: GeneratedSets, tmp_path: Path
) -> None:
    write_problems(tmp_path / "sft.jsonl", sets.sft)
    write_problems(tmp_path / "grpo.jsonl", sets.grpo)
    rendering = rendering_of(base, prompt_format=prompt_format(smoke.prompt.format), system="")
    count = token_counter(base)
    counted = {"rendering": rendering, "count_tokens": count}
    prompts = count([rendering.prompt(problem) for problem in sets.grpo])
    assert longest(smoke, "grpo", tmp_path, **counted) == max(prompts) + 16
    both = [
        sum(count([rendering.prompt(problem), rendering.completion(problem)]))
        for problem in sets.sft
    ]
    assert longest(smoke, "sft", tmp_path, **counted) == max(both)
