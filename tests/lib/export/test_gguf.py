"""The GGUF file holds the model: tensors, shape and vocabulary come back as they were."""

import json
import stat
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from lib.engines.policy import load_tokenizer
from lib.errors import UserError
from lib.export.gguf_file import (
    PRE_TOKENIZERS,
    check_convertible,
    check_metadata,
    load_gguf,
    pre_tokenizer,
    tensors_of,
    write_gguf,
)
from lib.export.quantizer import TOOL
from tests.lib.export.conftest import ExportTo, make_model

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGS = {
    "qwen3, tied, head_dim of its own": Qwen3Config(head_dim=32, tie_word_embeddings=True, **SHAPE),
    "qwen2, biases, untied": Qwen2Config(tie_word_embeddings=False, **SHAPE),
    "llama, untied": LlamaConfig(tie_word_embeddings=False, **SHAPE),
    "llama, rotary scaling, tied": LlamaConfig(
        tie_word_embeddings=True, rope_parameters=LLAMA3, **SHAPE
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_reader_that_is_not_ours_gives_back_every_weight(
    name: str, base: Path, tmp_path: Path
) -> None:
    folder = make_model(CONFIGS[name], tmp_path / "model", base=base)
    file = tmp_path / "model.gguf"
    write_gguf(folder, file, kind="f16")
    read = load_gguf(file, folder, dtype="float32", attention="sdpa")
    whole = AutoModelForCausalLM.from_pretrained(folder)
    for key, weight in whole.state_dict().items():
        stored = weight.half().float() if weight.ndim > 1 else weight
        assert torch.equal(read.state_dict()[key], stored), key
    names = {tensor.name for tensor in gguf.GGUFReader(file).tensors}
    assert ("output.weight" in names) != whole.config.tie_word_embeddings
    assert ("rope_freqs.weight" in names) == ("scaling" in name)


def test_a_llama_s_heads_are_laid_out_for_rotation_of_neighbours(
    base: Path, tmp_path: Path
) -> None:
    """The rotation that llama.cpp applies to the file is the one that transformers applies."""
    folder = make_model(CONFIGS["llama, untied"], tmp_path / "model", base=base)
    model = AutoModelForCausalLM.from_pretrained(folder)
    rows = torch.from_numpy(tensors_of(model)["blk.0.attn_k.weight"])
    original = model.model.layers[0].self_attn.k_proj.weight.detach()
    hidden = torch.randn(64, generator=torch.Generator().manual_seed(0))
    angles = 10000.0 ** (-torch.arange(0, 16, 2).float() / 16)
    turned = _neighbours(rows @ hidden, angles)
    expected = _halves(original @ hidden, angles)
    torch.testing.assert_close(turned.view(2, 8, 2).transpose(1, 2).reshape(-1), expected)


def _neighbours(keys: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (0, 1), (2, 3), … of each head, as ggml's default mode does."""
    pairs = keys.view(2, 8, 2)
    cos, sin = angles.cos(), angles.sin()
    left = pairs[..., 0] * cos - pairs[..., 1] * sin
    right = pairs[..., 0] * sin + pairs[..., 1] * cos
    return torch.stack([left, right], dim=-1).reshape(-1)


def _halves(keys: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (0, 8), (1, 9), … of each head, as transformers does."""
    halves = keys.view(2, 2, 8)
    cos, sin = angles.cos(), angles.sin()
    left = halves[:, 0] * cos - halves[:, 1] * sin
    right = halves[:, 0] * sin + halves[:, 1] * cos
    return torch.stack([left, right], dim=1).reshape(-1)


def test_rotary_scaling_divides_frequencies_by_the_stored_factors(
    base: Path, tmp_path: Path
) -> None:
    folder = make_model(CONFIGS["llama, rotary scaling, tied"], tmp_path / "model", base=base)
    model = AutoModelForCausalLM.from_pretrained(folder)
    factors = tensors_of(model)["rope_freqs.weight"]
    plain = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    used = model.model.rotary_emb.inv_freq.numpy()
    np.testing.assert_allclose(plain / factors, used, rtol=1e-5)
    assert factors[0] == pytest.approx(1.0)
    assert factors[-1] == pytest.approx(8.0)


def test_the_vocabulary_says_what_each_token_is(base: Path, tmp_path: Path) -> None:
    folder = make_model(CONFIGS["qwen2, biases, untied"], tmp_path / "model", base=base)
    write_gguf(folder, tmp_path / "model.gguf", kind="f16")
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    kinds = dict(zip(tokens, types, strict=True))
    assert kinds["<|end|>"] == gguf.TokenType.CONTROL
    assert kinds["<SOLUTION>"] == gguf.TokenType.USER_DEFINED
    assert kinds["a"] == gguf.TokenType.NORMAL
    unused = tokens[len(load_tokenizer(folder)) :]
    assert len(unused) > 1
    assert {kinds[token] for token in unused} == {gguf.TokenType.UNUSED}
    assert fields["tokenizer.ggml.eos_token_id"].contents() == tokens.index("<|end|>")
    assert fields["tokenizer.ggml.add_bos_token"].contents() is False
    assert fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_F16


def test_metadata_of_another_model_are_noticed(base: Path, tmp_path: Path) -> None:
    config = CONFIGS["qwen3, tied, head_dim of its own"]
    folder = make_model(config, tmp_path / "model", base=base)
    other = make_model(config, tmp_path / "other", base=base, unused_rows=16)
    write_gguf(folder, tmp_path / "model.gguf", kind="f16")
    check_metadata(tmp_path / "model.gguf", folder)
    with pytest.raises(ValueError, match=r"tokenizer\.ggml\.tokens is not what the model has"):
        check_metadata(tmp_path / "model.gguf", other)


@pytest.mark.usefixtures("in_process")
def test_eight_bits_stay_within_their_tolerance(
    adapter: Path, base: Path, tmp_path: Path, export_to: ExportTo
) -> None:
    verified = export_to(adapter, tmp_path / "export", base=base, gguf="q8_0")
    assert 0 < verified.errors["gguf"] < 5e-2
    (file,) = (tmp_path / "export/gguf").iterdir()
    assert file.name == "reckon-grpo-Q8_0.gguf"
    held = {tensor.name: tensor.tensor_type for tensor in gguf.GGUFReader(file).tensors}
    assert held["blk.0.attn_q.weight"] == gguf.GGMLQuantizationType.Q8_0
    assert held["blk.0.attn_norm.weight"] == gguf.GGMLQuantizationType.F32


def test_without_llama_cpp_a_type_that_needs_it_is_refused_before_any_work(
    base: Path, tmp_path: Path, export_to: ExportTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"q4_k_m needs llama\.cpp's `llama-quantize`.*f16, q8_0"):
        export_to(base, tmp_path / "export", base=base, gguf="q4_k_m")
    assert not (tmp_path / "export").exists()


def fake_quantizer(folder: Path, script: str) -> None:
    folder.mkdir(parents=True)
    tool = folder / TOOL
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)


@pytest.mark.usefixtures("in_process")
def test_llama_cpp_is_found_where_unsloth_puts_it_and_what_it_writes_is_verified(
    base: Path, tmp_path: Path, export_to: ExportTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the tool, which notes its arguments and hands the weights on as they are."""
    fake_quantizer(tmp_path / ".unsloth/llama.cpp", f'echo "$3" >{tmp_path}/type; cp "$1" "$2"')
    monkeypatch.setenv("HOME", str(tmp_path))
    verified = export_to(base, tmp_path / "out/export", base=base, gguf="q4_k_m")
    assert verified.errors["gguf"] < 1e-2
    assert (tmp_path / "type").read_text() == "Q4_K_M\n"
    (file,) = (tmp_path / "out/export/gguf").iterdir()
    assert file.name == "reckon-grpo-Q4_K_M.gguf"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["export"]


def test_a_tool_that_fails_is_quoted(
    base: Path, tmp_path: Path, export_to: ExportTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_quantizer(tmp_path / ".unsloth/llama.cpp", "echo no such type >&2; exit 1")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match="llama-quantize failed on q6_k: no such type"):
        export_to(base, tmp_path / "out/export", base=base, gguf="q6_k")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "gemma"}, "no GGUF of a `gemma` model; there are llama, qwen2, qwen3"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rotary scaling `yarn` is not known here"),
    ],
)
def test_what_would_come_out_wrong_is_refused(config: dict[str, object], said: str) -> None:
    known = {"model_type": "llama", "rope_parameters": {}}
    stand_in = type("Config", (), {**known, **config})
    with pytest.raises(UserError, match=said):
        check_convertible(stand_in)


def test_the_pre_tokenizer_is_told_by_its_expression(base: Path, tmp_path: Path) -> None:
    assert PRE_TOKENIZERS[PRETOKENIZE_REGEX] == "qwen2"
    assert pre_tokenizer(base) == "default"
    content = json.loads((base / "tokenizer.json").read_text())
    content["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = PRETOKENIZE_REGEX
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert pre_tokenizer(tmp_path) == "qwen2"
    content["model"]["type"] = "Unigram"
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="no byte-level BPE"):
        pre_tokenizer(tmp_path)
