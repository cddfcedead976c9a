"""vLLM's log-probs of an export must equal the checkpoint's, if vLLM is installed."""

import os
import signal
from pathlib import Path

import pytest
import torch

from lib.core.errors import UserError
from lib.engines import vllm
from lib.engines.policy import load_merged, load_tokenizer
from lib.engines.transformers import TransformersEngine
from lib.export import model, reload
from lib.export.model import ARITHMETIC
from tests.lib.engines import fake_vllm


def in_place_of_vllm(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    """Replace vLLM with transformers on the export, or on the model in `folder`."""

    def opened(name: str, written: Path, *, dtype: str, **_: object) -> TransformersEngine:
        weights = folder or written
        merged = load_merged(weights, base=weights, dtype=dtype, attention="sdpa")
        return TransformersEngine(merged, load_tokenizer(weights), batch_size=16)

    monkeypatch.setattr(model, "installed_version", lambda _: "0.32.0")
    monkeypatch.setattr(reload, "open_engine", opened)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_export_that_vllm_reads_alike_is_accepted(dtype, adapter, export_to, monkeypatch):
    in_place_of_vllm(monkeypatch, None)
    verified = export_to(adapter, dtype=dtype)
    # In 16 bits the same prompt rounds differently in a batch with longer prompts.
    assert verified.errors["vllm"] < {"float32": 1e-5, "bfloat16": 5e-3}[dtype]


@pytest.mark.usefixtures("in_process")
def test_an_export_that_vllm_reads_otherwise_is_refused(adapter, base, export_to, monkeypatch):
    in_place_of_vllm(monkeypatch, base)
    with pytest.raises(UserError, match="vllm: log-probs are off"):
        export_to(adapter)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("raised", "refusal"),
    [
        (UserError("no attention for head_dim=24"), "no attention for head_dim=24"),
        # vllm/v1/worker/gpu_worker.py, 0.32.0, where the GPU that NVML sees is hidden from torch.
        (
            AssertionError("DP adjusted local rank 0 is out of bounds for 0 devices."),
            "AssertionError: DP adjusted local rank 0 is out of bounds for 0 devices.",
        ),
        (KeyError(), "KeyError"),
    ],
)
def test_a_model_that_vllm_cannot_run_is_exported_and_says_so(
    raised, refusal, base, export_to, monkeypatch
):
    def refuse(*_: object, **__: object) -> None:
        raise raised

    in_place_of_vllm(monkeypatch, None)
    monkeypatch.setattr(reload, "open_engine", refuse)
    verified = export_to(base)
    assert verified.vllm_refusal == refusal
    assert set(verified.errors) == {"merged"}


def die(request: reload.Request) -> reload.Readings:
    """Replace `read_forms` in the fresh process: SIGKILL on vLLM, as a crashed kernel would."""
    if "vllm" in request.forms:
        os.kill(os.getpid(), signal.SIGKILL)
    return reload.read_forms(request)


def test_a_vllm_that_ends_its_process_costs_no_export(base, export_to, monkeypatch):
    monkeypatch.setattr(model, "installed_version", lambda _: "0.32.0")
    monkeypatch.setattr(reload, "read_forms", die)
    verified = export_to(base)
    assert "terminated" in verified.vllm_refusal
    assert set(verified.errors) == {"merged"}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    "words",
    [
        "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when",
        "Free memory on device cuda:0 (3.1/23.6 GiB) on startup is less than desired GPU memory",
    ],
)
def test_a_vllm_without_memory_is_named_with_a_remedy(words, base, export_to, monkeypatch):
    """The messages come from vLLM 0.32's v1/core/kv_cache_utils.py and v1/worker/utils.py."""

    def short(*_: object, **__: object) -> None:
        raise ValueError(words)

    fake_vllm.install(monkeypatch)
    monkeypatch.setattr(model, "installed_version", lambda _: "0.32.0")
    monkeypatch.setattr(vllm, "_build", short)
    refusal = export_to(base).vllm_refusal
    assert words.partition(". ")[0] in refusal
    assert "nvidia-smi" in refusal


def test_vllm_takes_no_more_than_is_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    # Of the free memory at most 95 % is taken.
    for free, share in ((80, 0.9), (40, 0.475)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, 80))
        assert vllm._share_of_free(0.9) == pytest.approx(share)


@pytest.mark.vllm
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_vllm_loads_what_was_written_in_the_fresh_process(dtype, adapter, export_to):
    verified = export_to(adapter, dtype=dtype)
    assert not verified.vllm_refusal
    assert 0 < verified.errors["vllm"] <= ARITHMETIC[dtype]
