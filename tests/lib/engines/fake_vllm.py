"""Stand-in for vLLM's `LLM` below `SharedVllmEngine`, on transformers: for machines without vLLM.

Every request reads its adapter's file anew, so that completions come from the weights handed over,
and from no others.
"""

import importlib.machinery
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from peft import PeftModel

from lib.engines.base import GeneratedCompletion, Sampling
from lib.engines.transformers import TransformersEngine
from lib.models.load import load_merged
from lib.models.pretrained import load_tokenizer


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the names that `lib.engines.vllm` needs to generate in vllm's place."""
    module = types.ModuleType("vllm")
    module.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    module.SamplingParams = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)


class FakeLlm:
    """vLLM's `LLM` on transformers; `did` lists its calls.

    Args:
        longest: longest sequence in its memory.
        rank: an adapter's largest rank; any is taken.
    """

    def __init__(self, weights: Path, longest: int, rank: int) -> None:
        self.weights, self.did, self.read = weights, [], []
        self.model_config = SimpleNamespace(max_model_len=longest, enable_sleep_mode=True)
        self.llm_engine = SimpleNamespace(remove_lora=lambda number: self.did.append("remove"))

    def lora_request(self, name: str, number: int, folder: str) -> Any:
        self.read.append(folder)
        return SimpleNamespace(lora_int_id=number, path=folder)

    def sleep(self, level: int) -> None:
        self.did.append(f"sleep {level}")

    def generate(
        self, prompts: list[Any], params: list[Any], *, use_tqdm: Any, lora_request: Any
    ) -> list[Any]:
        self.did.append("generate")
        self.params = params
        model = load_merged(self.weights, base=self.weights, dtype="float32", attention="sdpa")
        model = PeftModel.from_pretrained(model, lora_request.path)
        engine = TransformersEngine(model, load_tokenizer(self.weights), batch_size=64)
        token_ids = [prompt["prompt_token_ids"] for prompt in prompts]
        groups = engine.generate(token_ids, sampling_of(params[0]))
        return [SimpleNamespace(outputs=[answer_of(one) for one in group]) for group in groups]


def sampling_of(params: Any) -> Sampling:
    return Sampling(
        num_completions=params.n,
        max_new_tokens=params.max_tokens,
        temperature=params.temperature,
        stop_strings=tuple(params.stop or ()),
        seed=params.seed,
        log_probs=params.logprobs is not None,
    )


def answer_of(completion: GeneratedCompletion, version: str = "default") -> Any:
    logprobs = completion.log_probs and [
        {token: SimpleNamespace(logprob=value)}
        for token, value in zip(completion.token_ids, completion.log_probs, strict=True)
    ]
    return SimpleNamespace(
        token_ids=completion.token_ids,
        logprobs=logprobs,
        finish_reason="length" if completion.finish == "length" else "stop",
        weight_versions=[SimpleNamespace(version=version, start=0, end=len(completion.token_ids))],
        stop_reason=completion.text[-1] if completion.finish == "stop" else None,
    )
