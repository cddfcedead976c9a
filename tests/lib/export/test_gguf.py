"""A GGUF file has the checkpoint's log-probs, prompt and stop tokens, for llama.cpp and Ollama."""

import re
from pathlib import Path
from typing import Any

import gguf
import httpx
import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from lib.core.errors import UserError
from lib.export.gguf import SPLITS, split_name
from lib.models import tiny
from lib.models.pretrained import load_tokenizer
from lib.params import Params
from lib.problems.generated import GeneratedSets
from lib.prompts import prompt_format
from tests.lib.export.conftest import make_model

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
QWEN2, LLAMA_BPE, SMOLLM, GPT2 = SPLITS
MODELS: dict[str, tuple[PretrainedConfig, tuple[str, ...]]] = {
    "llama": (LlamaConfig(**SIZES, tie_word_embeddings=True), SMOLLM),
    "llama with biases, untied, long positions": (
        LlamaConfig(**SIZES, attention_bias=True, rope_parameters=LLAMA3),
        LLAMA_BPE,
    ),
    "qwen2": (Qwen2Config(**SIZES), QWEN2),
    # 48 is no multiple of a block's 32 weights: such rows stay in float16.
    "qwen3": (Qwen3Config(**{**SIZES, "hidden_size": 48}, head_dim=32), GPT2),
}


def split_by(tokenizer: Tokenizer, split: tuple[str, ...]) -> None:
    """Set a tokenizer's pre-tokenizer to a split of `SPLITS`, as in the families' own files."""
    parts: list[Any] = []
    for part in split:
        if part == "digits":
            parts.append(pre_tokenizers.Digits(individual_digits=True))
        elif part != "gpt2":
            parts.append(pre_tokenizers.Split(Regex(part), "isolated"))
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split[-1] == "gpt2")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*parts, whole])


def write_base(folder: Path, sets: GeneratedSets, smoke: Params, *, name: str) -> Path:
    config, split = MODELS[name]
    base = folder / "tokenizer"
    tiny.write_tiny(base, sets.sft, prompt_format=prompt_format("xml"), model=smoke.model, seed=0)
    tokenizer = load_tokenizer(base)
    split_by(tokenizer.backend_tokenizer, split)
    tokenizer.save_pretrained(base)
    return make_model(config, folder / "base", base=base)


@pytest.mark.fast_cases(2)
@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("kind", [pytest.param("f16", marks=pytest.mark.slow), "q8_0"])
@pytest.mark.parametrize("name", MODELS)
def test_the_file_says_what_the_checkpoint_says(name, kind, sets, smoke, export_to, tmp_path):
    base = write_base(tmp_path, sets, smoke, name=name)
    verified = export_to(base, base=base, gguf=kind)
    assert set(verified.errors) == {"gguf", "merged"}
    # Float16 keeps 11 bits of a weight, a block about 7.
    assert 0 < verified.errors["gguf"] < {"f16": 2e-3, "q8_0": 3e-2}[kind]


@pytest.mark.usefixtures("in_process")
def test_another_models_file_is_refused(sets, smoke, export_to, tmp_path, monkeypatch):
    base = write_base(tmp_path, sets, smoke, name="llama")
    # llama.cpp interleaves the rows of q and k; here they stay in transformers' order.
    monkeypatch.setattr("lib.export.gguf._interleaved", lambda weight, heads: weight)
    with pytest.raises(UserError, match="gguf: log-probs are off"):
        export_to(base, base=base, gguf="f16")


@pytest.mark.usefixtures("in_process")
def test_the_file_has_tokens_ends_and_template(sets, smoke, export_to, tmp_path):
    base = write_base(tmp_path, sets, smoke, name="llama")
    export_to(base, base=base, gguf="q8_0", system="Be brief.")
    fields = gguf.GGUFReader(tmp_path / "export/gguf/model-q8_0.gguf").fields
    held = {name: field.contents() for name, field in fields.items()}
    tokenizer = load_tokenizer(tmp_path / "export")
    tokens, types = held["tokenizer.ggml.tokens"], held["tokenizer.ggml.token_type"]
    known = tokenizer.get_vocab()
    assert {tokens[number]: number for number in range(len(known))} == known
    assert tokens[len(known) :] == [f"[PAD{number}]" for number in range(len(known), len(tokens))]
    assert types[tokenizer.eos_token_id] == gguf.TokenType.CONTROL
    assert types[known["<answer>"]] == gguf.TokenType.USER_DEFINED
    assert held["tokenizer.ggml.eos_token_id"] == tokenizer.eos_token_id
    assert held["tokenizer.ggml.add_bos_token"] is False
    assert held["tokenizer.ggml.pre"] == "smollm"
    assert held["tokenizer.chat_template"] == tokenizer.chat_template

    lines = (tmp_path / "export/gguf/Modelfile").read_text()
    assert lines.startswith("FROM ./model-q8_0.gguf\n")
    (system,) = re.findall(r'SYSTEM """(.*?)"""', lines, re.DOTALL)
    assert system == "Be brief."
    (template,) = re.findall(r'TEMPLATE """(.*?)"""', lines, re.DOTALL)
    # Go's template, rendered as Ollama does where there is a system prompt.
    (with_system,) = re.findall(r"{{ if .System }}(.*?){{ else }}", template, re.DOTALL)
    prompt = with_system.replace("{{ .System }}", system).replace("{{ .Prompt }}", "2 + 2?")
    messages = [{"role": "user", "content": "2 + 2?"}]
    assert prompt == tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False
    )
    for setting in ('stop "<|end|>"', "temperature 1.0", "repeat_penalty 1.0", "top_k 0"):
        assert f"PARAMETER {setting}\n" in lines


@pytest.mark.parametrize("split", SPLITS)
def test_every_familys_split_has_its_name(split, base):
    tokenizer = load_tokenizer(base)
    with pytest.raises(UserError, match="has no name for"):
        split_name(tokenizer)
    split_by(tokenizer.backend_tokenizer, split)
    assert split_name(tokenizer) == SPLITS[split]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_says_the_checkpoints_greedy_tokens(name, sets, smoke, export_to, tmp_path):
    xllamacpp = pytest.importorskip(
        "xllamacpp", reason="llama.cpp is not installed (pip install xllamacpp)"
    )
    base = write_base(tmp_path, sets, smoke, name=name)
    export_to(base, base=base, gguf="f16")
    settings = xllamacpp.CommonParams()
    settings.model.path = str(tmp_path / "export/gguf/model-f16.gguf")
    settings.n_ctx, settings.n_parallel = 512, 1
    server = xllamacpp.Server(settings)

    def ask(route: str, **body: Any) -> Any:
        answer = httpx.post(f"{server.listening_address}/{route}", json=body, timeout=60)
        return answer.json()["tokens"]

    plain = AutoModelForCausalLM.from_pretrained(base)
    tokenizer = load_tokenizer(tmp_path / "export")
    for problem in sets.benchmarks["held_out"][:3]:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": problem.problem}],
            add_generation_prompt=True,
            tokenize=False,
        )
        prompt = tokenizer(text, add_special_tokens=False, return_tensors="pt")
        ids = prompt["input_ids"][0].tolist()
        assert ask("tokenize", content=text, add_special=True, parse_special=True) == ids
        expected = plain.generate(**prompt, max_new_tokens=12, do_sample=False)[0, len(ids) :]
        generated = ask("completion", prompt=ids, n_predict=12, temperature=0.0, return_tokens=True)
        assert generated[: len(expected)] == expected.tolist()
