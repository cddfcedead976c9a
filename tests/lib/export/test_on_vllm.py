"""vLLM loads an export and answers as transformers does."""

import contextlib

import pytest

from lib.engines.base import Sampling, open_engine

pytestmark = pytest.mark.vllm


def test_vllm_and_transformers_give_the_same_greedy_tokens(adapter, export_to, prompts, tmp_path):
    export_to(adapter)
    folder, answers = tmp_path / "export", {}
    greedy = Sampling(num_completions=1, max_new_tokens=16, temperature=0.0)
    loading = {"dtype": "float32", "attention": "sdpa", "max_seq_length": 256}
    for name in ("transformers", "vllm"):
        with contextlib.closing(
            open_engine(name, folder, base=folder, **loading, batch_size=16)
        ) as engine:
            groups = engine.generate(prompts, greedy)
            answers[name] = [each.token_ids for (each,) in groups]
    assert answers["vllm"] == answers["transformers"]
    assert len({*map(tuple, answers["vllm"])}) > 1
