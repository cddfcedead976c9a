"""Reproducible numbers: random states, threads and kernels."""

import os

import pytest
import torch
from torch.utils import deterministic
from transformers import modeling_flash_attention_utils as flash

from lib.models.runtime import configure, prefer_reproducible_kernels
from tests.conftest import run_in_forks
from tests.lib.training.steps import build, letters, plain_sft, reward_with
from tests.vllm_server import free_port

CAPABILITY = "ATEN_CPU_CAPABILITY"


@pytest.fixture
def process_settings():
    """Restore the process's settings after a test."""
    kernels = torch.are_deterministic_algorithms_enabled()
    filled = deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(kernels, warn_only=True)
    deterministic.fill_uninitialized_memory = filled


@pytest.mark.slow
def test_kernels_and_threads_are_those_of_params(monkeypatch, tmp_path):
    """AVX-512 computes as AVX2 unless the user has a choice; both nodes have params' threads.

    Without a variable, accelerate's `PartialState` sets them anew (state.py, 1.15.0).
    """
    for name in [name for name in os.environ if "OMP" in name or name == CAPABILITY]:
        monkeypatch.delenv(name)
    kernels = (
        "torch.cpu._is_avx512_supported = lambda: True; r.configure(seed=0, threads=1); "
        f"print(os.environ['{CAPABILITY}'], torch.backends.cpu.get_cpu_capability())"
    )
    node = (
        "os.environ['RANK'] = '{}'; r.configure(seed=0, threads=3); PartialState(cpu=True); "
        "print(torch.distributed.get_world_size(), torch.get_num_threads())"
    )
    one = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "2"}
    printed = run_in_forks(
        "import os, torch, torch._inductor.config, lib.models.runtime as r; "
        "from accelerate import PartialState",
        [kernels, f"os.environ['{CAPABILITY}'] = 'default'; {kernels}", *map(node.format, "01")],
        tmp_path,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()),
        **one,
    )
    # torch may add a warning: the node that ends first leaves the other without its store.
    for text, line in zip(printed, ["avx2 AVX2", "default DEFAULT", "2 3", "2 3"], strict=True):
        assert line in text.splitlines()


@pytest.mark.usefixtures("process_settings")
def test_reproducible_kernels_do_not_write_to_new_memory():
    deterministic.fill_uninitialized_memory = True
    prefer_reproducible_kernels()
    assert torch.are_deterministic_algorithms_enabled()
    # Filling sets new integers to their largest value.
    largest = torch.iinfo(torch.int64).max
    assert not all((torch.empty(64, dtype=torch.int64) == largest).all() for _ in range(8))


@pytest.mark.usefixtures("process_settings")
def test_a_flash_kernel_gets_the_deterministic_flag(monkeypatch):
    """The flag reaches the kernel by transformers' own call."""
    monkeypatch.delenv("FLASH_ATTENTION_DETERMINISTIC", raising=False)
    calls = []

    def kernel(q, k, v, causal, softmax_scale, deterministic=False):
        calls.append({"deterministic": deterministic})
        return q

    loaded = (kernel,) * 5, flash._lazy_define_process_function(kernel)
    monkeypatch.setattr(flash, "lazy_import_flash_attention", lambda *_, **__: loaded)
    query = torch.zeros(1, 2, 1, 4)
    for reproducible in (False, True):
        if reproducible:
            prefer_reproducible_kernels()
        flash._flash_attention_forward(query, query, query, None, query_length=2, is_causal=True)
    assert calls == [{"deterministic": False}, {"deterministic": True}]


@pytest.mark.usefixtures("process_settings")
@pytest.mark.parametrize("phase", ["sft", "grpo"])
def test_training_reads_no_memory_before_it_is_written(phase, smoke, base, sets, tmp_path):
    """NaN in all new memory leaves the weights as they are."""

    def trained(fills):
        configure(seed=smoke.seed, threads=smoke.torch_threads)
        deterministic.fill_uninitialized_memory = fills
        if phase == "grpo":
            trainer = build(sets.grpo, base, smoke, tmp_path, model=smoke.model, max_steps=2)
            trainer = reward_with(trainer, letters)
        else:
            epoch = smoke.sft.model_copy(update={"num_epochs": 1, "save_steps": 0, "eval_steps": 0})
            trainer = plain_sft(sets.sft[:64], base, smoke, tmp_path, sft=epoch)
        trainer.train()
        return {name: weight.clone() for name, weight in trainer.model.state_dict().items()}

    unfilled, filled = trained(fills=False), trained(fills=True)
    assert all(torch.equal(unfilled[name], filled[name]) for name in unfilled)
    # An adapter starts from zeros on one side, and has moved.
    assert all(weight.any() for name, weight in unfilled.items() if "lora_B" in name)
