"""GRPO on the Unsloth backend with a real vLLM below the policy, set up as by Unsloth.

Unsloth itself is the fake: the policy is transformers', and the two share no memory here.
"""

from pathlib import Path
from typing import Any

import pytest

from lib.engines.base import open_engine
from lib.engines.vllm import SharedVllmEngine, cpu_settings
from lib.models import compat
from lib.models.load import trainable_policy
from tests.lib.engines.contract import EngineContract
from tests.lib.models import fake_unsloth, unsloth_contract
from tests.lib.models.log_prob_gap import assert_follows

pytestmark = pytest.mark.vllm


def open_vllm(weights: Path, longest: int, rank: int) -> Any:
    """Open vLLM as unsloth_zoo 2026.10.7's `load_vllm` does, with a CPU's settings."""
    compat.prepare_vllm()
    from vllm import LLM
    from vllm.lora.request import LoRARequest

    llm = LLM(
        model=str(weights),
        dtype="float32",
        max_model_len=longest,
        max_num_seqs=64,
        max_logprobs=0,
        logprobs_mode="processed_logprobs",
        enable_lora=True,
        max_lora_rank=rank,
        max_loras=1,
        enable_prefix_caching=True,
        seed=0,
        disable_log_stats=True,
        **cpu_settings(weights, max_seq_length=longest, batch_size=64),
    )
    llm.lora_request = LoRARequest
    return llm


@pytest.fixture(scope="class")
def patched():
    """List the engines opened by the fake; they end with the class."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        opened = fake_unsloth.install(monkeypatch, open_vllm).opened
        yield opened
    from vllm.distributed import cleanup_dist_env_and_memory

    for llm in opened:
        llm.llm_engine.engine_core.shutdown()
    cleanup_dist_env_and_memory()


@pytest.fixture(scope="class")
def settings():
    return unsloth_contract.settings("float32")


@pytest.fixture(scope="class")
def engine(patched, base, settings):
    """Open the engine with an adapter still without effect."""
    policy = trainable_policy(base, base=base, settings=settings, seed=0, memory_share=0.5)
    opened = open_engine("vllm", base, base=base, **settings.loading, batch_size=8, policy=policy)
    opened.sync(policy)
    yield opened
    opened.close()


class TestSharedEngine(EngineContract):
    def test_it_is_the_policys_own(self, engine, patched):
        assert isinstance(engine, SharedVllmEngine)
        assert len(patched) == 1

    def test_an_adapter_is_the_policys_after_each_sync(self, engine, prompts):
        assert_follows(engine, engine._policy, prompts)


class TestGrpo:
    def test_it_trains_on_what_the_shared_vllm_generates(self, patched, base, tmp_path, settings):
        check = unsloth_contract.CHECKS["grpo_trains_on_what_the_shared_vllm_generates"]
        check(base, tmp_path, settings)
        assert len(patched) == 1
