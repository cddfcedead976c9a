"""Generation with transformers: greedy is the argmax, batching changes nothing, ends are seen."""

from pathlib import Path

import pytest
import torch

from lib.engines.base import Sampling, encode
from lib.engines.policy import load_merged, load_tokenizer
from lib.engines.transformers import TransformersEngine
from lib.problems.generated import GeneratedSets
from lib.prompts import prompt_format


@pytest.fixture(scope="module")
def prompts(base: Path, sets: GeneratedSets) -> list[list[int]]:
    chosen = prompt_format("working_out")
    asked = [chosen.prompt(problem.problem, system="") for problem in sets.grpo[:6]]
    return encode(load_tokenizer(base), asked)


def engine(base: Path, *, batch_size: int) -> TransformersEngine:
    model = load_merged(base, base=base, dtype="float32", attention="sdpa")
    return TransformersEngine(model, load_tokenizer(base), batch_size=batch_size)


def greedy(max_new_tokens: int = 8) -> Sampling:
    return Sampling(num_completions=1, max_new_tokens=max_new_tokens, temperature=0.0)


def drawn(seed: int) -> Sampling:
    return Sampling(num_completions=3, max_new_tokens=8, temperature=1.0, seed=seed)


def test_greedy_tokens_are_the_argmax_of_a_plain_forward_pass(
    base: Path, prompts: list[list[int]]
) -> None:
    tested = engine(base, batch_size=4)
    completions = tested.generate(prompts, greedy())
    for prompt, (completion,) in zip(prompts, completions, strict=True):
        tokens = list(prompt)
        for token in completion.token_ids:
            logits = tested.model(torch.tensor([tokens])).logits[0, -1]
            assert token == int(logits.argmax())
            tokens.append(token)


def test_batches_change_neither_the_order_nor_the_tokens(
    base: Path, prompts: list[list[int]]
) -> None:
    assert engine(base, batch_size=1).generate(prompts, greedy()) == engine(
        base, batch_size=6
    ).generate(prompts, greedy())


def test_each_prompt_gets_its_completions_and_the_seed_decides_them(
    base: Path, prompts: list[list[int]]
) -> None:
    tested = engine(base, batch_size=6)
    first = tested.generate(prompts, drawn(seed=1))
    assert [len(completions) for completions in first] == [3] * len(prompts)
    assert first == tested.generate(prompts, drawn(seed=1))
    assert first != tested.generate(prompts, drawn(seed=2))


def test_a_completion_that_runs_into_the_limit_is_truncated_and_one_that_ends_is_not(
    base: Path,
) -> None:
    tested = engine(base, batch_size=1)
    eos = tested.tokenizer.eos_token_id
    assert tested._completion([70, 71, eos, 72]).token_ids == (70, 71, eos)
    assert not tested._completion([70, 71, eos, 72]).truncated
    assert tested._completion([70, 71, 72]).truncated


def test_no_prompts_give_no_completions(base: Path) -> None:
    assert engine(base, batch_size=4).generate([], greedy()) == []
