"""vLLM in this process: the contract, the policy's weights after a sync, and a clean end."""

import contextlib
import functools
import gc
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lib.core.errors import UserError
from lib.engines.base import open_engine
from lib.models import compat
from lib.models.load import load_policy
from tests.lib.engines.contract import EngineContract, random_sampling
from tests.lib.models.log_prob_gap import assert_follows, gap
from tests.live import held

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="session")
def open_vllm(base, smoke):
    """Open a checkpoint on vLLM; a process takes one at a time."""
    return functools.partial(open_engine, "vllm", base=base, **smoke.model.loading)


@pytest.fixture(scope="class")
def engine(base, open_vllm):
    """Open the base model, ready for full weights."""
    opened = open_vllm(base, batch_size=64)
    yield opened
    opened.close()


class TestFullWeights(EngineContract):
    def test_full_weights_are_the_policys_after_each_sync(self, engine, base, full, prompts):
        start = load_policy(base, base=base, settings=full)
        policy = load_policy(base, base=base, settings=full)
        assert_follows(engine, policy, prompts)
        engine.sync(start)
        assert gap(engine, start.eval(), prompts) < 1e-4

    def test_more_prompts_than_one_step_reads_are_answered(self, engine):
        """A prompt read in parts would rewind the generator of its draws, and a CPU's cannot."""
        prompts = [[5 + (37 * i + j) % 500 for i in range(70)] for j in range(300)]
        groups = engine.generate(prompts, random_sampling(num_completions=1, max_new_tokens=1))
        assert [len(group) for group in groups] == [1] * 300


def test_an_adapter_is_the_policys_after_each_sync(open_vllm, prompts, adapter_checkpoint):
    checkpoint, policy = adapter_checkpoint
    with contextlib.closing(open_vllm(checkpoint, batch_size=8, policy=policy)) as opened:
        assert gap(opened, policy, prompts) < 1e-4
        assert_follows(opened, policy, prompts)


def test_the_process_is_left_as_it_was(base, open_vllm):
    def state():
        numbers = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
        return (*numbers, torch.set_num_threads, torch.get_num_threads(), torch.get_default_dtype())

    before = state()
    opened = open_vllm(base, batch_size=8)
    assert state() == before
    with pytest.raises(RuntimeError, match="another vLLM engine"):
        open_vllm(base, batch_size=8)
    opened.close()
    assert state() == before
    opened.close()
    opened.close()


def test_closing_gives_weights_cache_and_processes_back(base, open_vllm, full, prompts):
    cache = 2**26  # the least that an engine here sets aside
    few = 1024  # scalars that vLLM keeps; the smallest matrix of the model has 4096 bytes
    policy = load_policy(base, base=base, settings=full)
    gc.collect()
    before = held()
    for _ in range(2):
        opened = open_vllm(base, batch_size=8, policy=policy)
        opened.generate(prompts, random_sampling(num_completions=2, max_new_tokens=4))
        opened.sync(policy)
        assert held().num_bytes > before.num_bytes + cache
        opened.close()
        assert held().num_bytes <= before.num_bytes + few
        assert held().processes == before.processes


def test_heads_without_a_kernel_are_refused_in_one_line(base, open_vllm, smoke, tmp_path):
    odd = load_policy(base, base=base, settings=smoke.model)
    odd.config.head_dim = 24
    odd.config.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="head_dim=24"):
        open_vllm(tmp_path, batch_size=8)


def test_an_engine_is_put_on_the_gpu_of_a_number():
    """Seen without a GPU: vLLM's executor gives its worker the number."""
    compat.prepare_vllm()
    executor = compat.executor_on(1)
    on_gpu = executor.__new__(executor)
    on_gpu.vllm_config = SimpleNamespace(device_config=SimpleNamespace(device="cuda"))
    _, rank, number = on_gpu._distributed_args()
    assert (rank, number) == (0, 1)


def test_the_repaired_code_is_still_in_its_place():
    """A new vLLM may have moved the code, or need no repair."""
    compat.prepare_vllm()
    import inspect

    from vllm.model_executor.layers import utils
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.worker import cpu_worker

    gemm = inspect.getsource(utils)
    assert (
        "def dispatch_cpu_unquantized_gemm(\n    layer: torch.nn.Module,\n    remove_weight" in gemm
    )
    assert {"logits", "sampling_metadata"} <= set(inspect.signature(Sampler.forward).parameters)
    assert "torch.set_num_threads = skip_set_num_threads" in inspect.getsource(cpu_worker)
