"""Calls by vLLM's requests, one for each: the contract, with transformers in vLLM's place."""

from collections.abc import Sequence
from typing import Any

import pytest

from lib.engines.base import GeneratedCompletion, Sampling
from lib.engines.transformers import TransformersEngine
from lib.engines.vllm_base import VllmBase
from lib.models.load import load_merged
from lib.models.pretrained import load_tokenizer
from lib.prompts.tools import TOOLS
from tests.lib.engines.contract import TOY, EngineContract, greedy


class OnTransformers(VllmBase):
    """Answers each request by itself; `lengths` has the prompts' lengths of each call."""

    def __init__(self, inner: TransformersEngine) -> None:
        assert inner.positions
        super().__init__(inner.tokenizer, max_seq_length=inner.positions)
        self.inner, self.lengths = inner, []

    def _answer(
        self,
        prompts: Sequence[Sequence[int]],
        requests: Sequence[dict[str, Any]],
        sampling: Sampling,
    ) -> list[list[GeneratedCompletion]]:
        self.lengths.append([len(prompt) for prompt in prompts])
        return [
            [self._as_vllm(one, sampling) for one in self._ask(prompt, request)]
            for prompt, request in zip(prompts, requests, strict=True)
        ]

    def _ask(self, prompt: Sequence[int], request: dict[str, Any]) -> list[GeneratedCompletion]:
        asked = Sampling(
            num_completions=request["n"],
            max_new_tokens=request["max_tokens"],
            temperature=request["temperature"],
            stop_strings=tuple(request["stop"] or ()),
            seed=request["seed"] or 0,
            log_probs=request["logprobs"] is not None,
            **{name: request[name] for name in ("top_p", "top_k", "min_p", "ignore_eos")},
        )
        (group,) = self.inner.generate([prompt], asked)
        return group

    def _as_vllm(self, one: GeneratedCompletion, sampling: Sampling) -> GeneratedCompletion:
        return self._checked_completion(
            sampling,
            token_ids=one.token_ids,
            reason="length" if one.finish == "length" else "stop",
            stopped_by=one.text if one.finish == "stop" else None,
            log_probs=one.log_probs,
            versions={self._version},
        )

    sync = close = _replace_adapter = None  # type: ignore[assignment]


@pytest.fixture(scope="module")
def inner(base):
    model = load_merged(base, base=base, dtype="float32", attention="sdpa")
    return TransformersEngine(model, load_tokenizer(base), batch_size=64)


class TestCalls:
    test_a_call = EngineContract.test_a_calls_result_is_forced_whole_or_not_at_all

    @pytest.fixture
    def engine(self, inner):
        return OnTransformers(inner)


def test_greedy_completions_are_those_of_the_own_loop(inner, prompts, monkeypatch):
    monkeypatch.setitem(TOOLS, "toy", TOY)
    engine = OnTransformers(inner)
    sampling = greedy(max_new_tokens=32, tool="toy", stop_strings=("so",))
    assert engine.generate(prompts, sampling) == inner.generate(prompts, sampling)
    counts = [len(each) for each in engine.lengths]
    # A request for each call, of those that still call.
    assert len(counts) > 2
    assert counts == sorted(counts, reverse=True)
