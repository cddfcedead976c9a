"""vLLM, where it is installed, says of an export what the checkpoint says, or there is none."""

from pathlib import Path

import pytest

from lib.engines.base import LoadSettings
from lib.engines.policy import load_merged, load_tokenizer
from lib.engines.transformers import TransformersEngine
from lib.errors import UserError
from lib.export import on_vllm, verify
from lib.export.on_vllm import Deviation
from tests.lib.export.conftest import ExportTo


def in_place_of_vllm(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    """Let a model of transformers stand where vLLM would: the export, or the one in `folder`."""

    def opened(name: str, written: Path, *, model: LoadSettings, **_: object) -> TransformersEngine:
        read = folder or written
        loaded = load_merged(read, base=read, dtype=model.dtype, attention="sdpa")
        return TransformersEngine(loaded, load_tokenizer(read), batch_size=16)

    monkeypatch.setattr(verify, "installed_version", lambda _: "0.32.0")
    monkeypatch.setattr(on_vllm, "open_engine", opened)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_export_that_vllm_reads_alike_is_accepted(
    dtype: str,
    adapter: Path,
    base: Path,
    tmp_path: Path,
    export_to: ExportTo,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_place_of_vllm(monkeypatch, None)
    verified = export_to(adapter, tmp_path / "export", base=base, dtype=dtype)
    assert verified.found.vllm is not None
    assert verified.found.vllm.differing == []
    assert verified.found.vllm.log_prob_error < 1e-5
    assert verified.on_vllm.startswith("log-probs off by ")


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("dtype", "said"),
    [("float32", "[1-4] of 4 greedy completions differ"), ("bfloat16", "log-probs are off by")],
)
def test_an_export_that_vllm_reads_otherwise_is_refused(
    dtype: str,
    said: str,
    adapter: Path,
    base: Path,
    tmp_path: Path,
    export_to: ExportTo,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_place_of_vllm(monkeypatch, base)
    with pytest.raises(UserError, match=f"export: vllm: {said} .*; nothing was exported"):
        export_to(adapter, tmp_path / "export", base=base, dtype=dtype)


@pytest.mark.usefixtures("in_process")
def test_a_model_that_vllm_cannot_run_here_is_exported_and_says_so(
    base: Path, tmp_path: Path, export_to: ExportTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UserError("vLLM's CPU backend has no attention for head_dim=24")

    in_place_of_vllm(monkeypatch, None)
    monkeypatch.setattr(on_vllm, "open_engine", refuse)
    verified = export_to(base, tmp_path / "export", base=base)
    assert verified.on_vllm.startswith("not verified: vLLM's CPU backend has no attention")


@pytest.mark.usefixtures("in_process")
def test_without_vllm_nothing_is_said_of_it(
    base: Path, tmp_path: Path, export_to: ExportTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_place_of_vllm(monkeypatch, None)
    monkeypatch.setattr(verify, "installed_version", lambda _: "")
    verified = export_to(base, tmp_path / "export", base=base)
    assert verified.found.vllm is None
    assert verified.on_vllm == ""


def test_log_probs_are_held_to_the_tolerance_of_their_type() -> None:
    found = Deviation(num_prompts=2, differing=[], log_prob_error=0.01)
    assert found.fault(dtype="float16") == ""
    assert found.fault(dtype="float32") == "log-probs are off by 0.01, at most 0.001 in float32"
    assert "off by nan" in Deviation(2, [], float("nan")).fault(dtype="bfloat16")
    assert Deviation(2, [1], 0.0).fault(dtype="bfloat16") == ""
    assert Deviation(2, [1], 0.0).fault(dtype="float32").endswith("the first at prompt 1")


@pytest.mark.vllm
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_vllm_loads_what_was_written_in_the_fresh_process(
    dtype: str, adapter: Path, base: Path, tmp_path: Path, export_to: ExportTo
) -> None:
    verified = export_to(adapter, tmp_path / "export", base=base, dtype=dtype)
    assert verified.found.vllm is not None, verified.on_vllm
    assert 0 < verified.found.vllm.log_prob_error <= on_vllm.TOLERANCE[dtype]
