"""A Hub model's base is tokenizer and pointer; loading it gives the model itself."""

import ast
import io
import os
import shutil
import socket
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch
from peft import PeftModel
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    modeling_flash_attention_utils,
)
from transformers.integrations import hub_kernels

from lib.artifacts import read_json, write_json
from lib.core.errors import UserError
from lib.models.hub import kernel_repository
from lib.models.load import add_adapter, load_merged, load_policy
from lib.models.pretrained import load_pretrained, load_tokenizer
from lib.models.save import save_policy, write_base
from lib.models.weights import find_weights, read_pointer, weights_of
from lib.params import preset_params
from lib.params.model import FLASH_KERNEL
from lib.prompts import prompt_format
from lib.prompts.formats import conversation
from tests.conftest import ROOT
from tests.lib.export.conftest import make_adapter
from tests.lib.models.hub_models import COMMIT, same_weights, write_model, write_snapshot
from tests.lib.models.log_prob_gap import moved
from tests.lib.prompts.rendering import prompt_text
from tests.pipeline.systems import SYSTEMS


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Make an empty cache of the Hub on a machine without a network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


@pytest.fixture
def base_of(tmp_path):
    """Write the base of a model's settings."""

    def write(model):
        folder = tmp_path / "models" / "base"
        write_base(folder, [], prompt_format=prompt_format("working_out"), model=model, seed=0)
        return folder

    return write


@pytest.fixture
def snapshot(cache):
    """Write a commit of `owner/tiny-qwen` into the Hub's cache."""
    return write_snapshot(cache, name="owner/tiny-qwen", architecture="qwen2")


def test_a_commit_in_the_hubs_cache_loads_without_a_network(snapshot, model_named, base_of):
    model = model_named("owner/tiny-qwen", COMMIT)
    base = base_of(model)

    assert not list(base.glob("*.safetensors"))
    pointer = read_pointer(base)
    assert (pointer["name"], pointer["revision"]) == ("owner/tiny-qwen", COMMIT)
    size = (snapshot / "model.safetensors").stat().st_size
    assert pointer["files"]["model.safetensors"]["size"] == size
    loaded = load_policy(base, base=base, settings=model)
    assert same_weights(loaded, AutoModelForCausalLM.from_pretrained(snapshot))
    assert weights_of(base) == snapshot


@pytest.mark.parametrize("revision", ["main", ""])
@pytest.mark.usefixtures("snapshot")
def test_a_branch_is_refused_until_fetch_wrote_its_commit(model_named, base_of, revision):
    with pytest.raises(UserError, match="make fetch"):
        base_of(model_named("owner/tiny-qwen", revision))


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_the_tokenizer_renders_the_format_and_pads_without_eos(
    model_named, base_of, tmp_path, architecture
):
    folder = write_model(tmp_path / "mine", architecture=architecture)
    tokenizer = load_tokenizer(base_of(model_named(str(folder))))
    own_format = prompt_format("working_out")
    messages = conversation("What is 1 + 1?", system="")
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    bos = tokenizer.bos_token or ""
    assert rendered == prompt_text(own_format, "What is 1 + 1?", bos_token=bos)
    assert tokenizer.pad_token not in (None, tokenizer.eos_token)
    assert len(tokenizer) == len(AutoTokenizer.from_pretrained(folder))
    assert len(tokenizer.tokenize("<SOLUTION>")) > 1


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_a_tags_row_is_the_mean_of_its_pieces_at_every_load(
    model_named, base_of, tmp_path, architecture
):
    """`llama` has two tables of embeddings here, `qwen3` one."""
    folder = write_model(tmp_path / "mine", architecture=architecture)
    model = model_named(str(folder), tag_tokens=True)
    base = base_of(model)
    tokenizer, before = load_tokenizer(base), AutoTokenizer.from_pretrained(folder)
    loaded = load_policy(base, base=base, settings=model)
    pieces = before("</SOLUTION>", add_special_tokens=False)["input_ids"]
    (tag,) = tokenizer("</SOLUTION>", add_special_tokens=False)["input_ids"]
    for table in (loaded.get_input_embeddings().weight, loaded.get_output_embeddings().weight):
        assert len(table) >= len(tokenizer)
        torch.testing.assert_close(table[tag], table[pieces].mean(dim=0))
    assert same_weights(loaded, load_policy(base, base=base, settings=model))


@pytest.mark.usefixtures("snapshot")
def test_an_adapter_names_its_model_by_id_and_comes_back_over_it(model_named, base_of, tmp_path):
    model = model_named("owner/tiny-qwen", COMMIT, tag_tokens=True)
    base = base_of(model)
    policy = add_adapter(load_policy(base, base=base, settings=model), model.lora)
    trained = tmp_path / "models" / "sft"
    save_policy(moved(policy), load_tokenizer(base), trained)

    config = read_json(trained / "adapter_config.json")
    assert (config["base_model_name_or_path"], config["revision"]) == ("owner/tiny-qwen", COMMIT)
    again = load_policy(trained, base=base, settings=model)
    assert isinstance(again, PeftModel)
    # Saved while it trains, it must not look for its model on the Hub.
    assert Path(again.peft_config["default"].base_model_name_or_path).is_dir()
    assert same_weights(policy, again)
    merged = load_merged(trained, base=base, dtype="float32", attention="sdpa")
    ids = load_tokenizer(base)("What is 1 + 1?</SOLUTION>", return_tensors="pt")
    torch.testing.assert_close(merged(**ids).logits, again(**ids).logits, atol=1e-3, rtol=1e-3)


def test_a_tiny_models_pointer_changes_with_its_weights(smoke, tmp_path):
    """In `dvc.yaml` evaluation depends on the pointer, for every kind of base."""
    text = "Tom has 3 apples and 4 pears."
    pointers = []
    for seed in (0, 1):
        base = tmp_path / str(seed)
        problems = [type("Row", (), {"problem": text, "solution": text})()]
        write_base(base, problems, prompt_format=prompt_format("xml"), model=smoke.model, seed=seed)
        assert weights_of(base) == base
        pointers.append(read_pointer(base)["files"]["model.safetensors"])
    assert pointers[0] != pointers[1]


def test_weights_that_changed_since_prepare_are_refused(model_named, base_of, tmp_path):
    folder = write_model(tmp_path / "mine", architecture="qwen2")
    model = model_named(str(folder))
    base = base_of(model)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match="force prepare"):
        load_policy(base, base=base, settings=model)


def test_without_a_network_an_uncached_model_is_one_line(cache):
    with pytest.raises(UserError, match=r"make fetch[^\n]*$"):
        find_weights("owner/elsewhere", COMMIT)


def test_a_folder_without_a_model_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match="safetensors"):
        find_weights(str(tmp_path), "")


@pytest.mark.parametrize(("name", "word"), [("", "name"), ("/models/mine", "Hub")])
def test_a_revision_belongs_to_an_id_on_the_hub(model_named, name, word):
    with pytest.raises(ValueError, match=word):
        model_named(name, COMMIT)


def test_flash_attention_that_cannot_be_had_is_refused(smoke, base):
    flash = smoke.model.model_copy(update={"attention": "flash_attention_2"})
    with pytest.raises(UserError, match=r"EXTRA=gpu.*attention: sdpa"):
        load_policy(base, base=base, settings=flash)


KERNEL = """
import torch

calls = []

def flash_attn_func(q, k, v, causal=False, softmax_scale=None):
    calls.append(q.shape)
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    shared = {"scale": softmax_scale, "is_causal": causal, "enable_gqa": True}
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **shared).transpose(1, 2)

def flash_attn_varlen_func(*_, **__):
    raise NotImplementedError
"""


def test_a_presets_attention_asks_the_network_for_nothing(tmp_path, monkeypatch):
    """`make fetch` has written the kernel's commit into params."""
    loaded = []

    def get_kernel(name, **_):
        """Read `LOCAL_KERNELS` as `kernels` does (0.16.2, only in the GPU lock)."""
        folder = dict(entry.split("=", 1) for entry in os.environ["LOCAL_KERNELS"].split(":"))[name]
        (file,) = Path(folder).glob("build/*/__init__.py")
        loaded.append(ModuleType("flash_attn2"))
        exec(compile(file.read_text(), str(file), "exec"), loaded[-1].__dict__)
        return loaded[-1]

    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda: True)
    monkeypatch.setattr(hub_kernels, "get_kernel", get_kernel)
    monkeypatch.setattr(modeling_flash_attention_utils, "_loaded_implementation", None)
    refused = Mock(side_effect=AssertionError("the network was used"))
    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setenv("LOCAL_KERNELS", "")
    monkeypatch.chdir(tmp_path)
    file = kernel_repository(COMMIT).folder / "build/torch-cuda/__init__.py"
    file.parent.mkdir(parents=True)
    file.write_text(KERNEL)
    with_flash = 0
    for preset, system in SYSTEMS.items():
        attention = preset_params(preset).model.attention
        if attention == "flash_attention_2":
            attention, with_flash = f"{FLASH_KERNEL}@{COMMIT}", with_flash + 1
        model = write_model(tmp_path / preset, architecture=system["architecture"])
        flash, eager = (
            load_merged(model, base=model, dtype="float32", attention=name)
            for name in (attention, "eager")
        )
        tokens = torch.arange(8)[None]
        assert torch.allclose(flash(tokens).logits, eager(tokens).logits, atol=1e-5)
    assert sum(len(kernel.calls) for kernel in loaded) == with_flash > 0


@pytest.mark.parametrize("auto", [AutoConfig, AutoTokenizer, AutoModelForCausalLM])
def test_a_models_own_code_is_never_run_after_a_question(tmp_path, monkeypatch, auto):
    """A question from transformers would take the line `y` of standard input for consent."""
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    named = {"AutoConfig": "own.Own", "AutoTokenizer": ["own.Own", None]}
    for name in ("config.json", "tokenizer_config.json"):
        write_json(tmp_path / name, {"model_type": "own", "auto_map": named})
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(UserError, match=f"{tmp_path} brings code of its own"):
        load_pretrained(auto, tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("config.json", {"hidden_size": "x"}, "hidden_size"),
        ("config.json", {"hidden_size": 8}, "differ in their shapes"),
        ("tokenizer_config.json", {"eos_token": 5}, "eos_token"),
    ],
)
def test_files_that_do_not_fit_together_are_one_line(base, tmp_path, name, changes, words):
    folder = shutil.copytree(base, tmp_path / "damaged")
    write_json(folder / name, {**read_json(folder / name), **changes})
    with pytest.raises(UserError, match=rf"\A{folder} cannot be loaded[^\n]*{words}[^\n]*\Z"):
        load_pretrained(AutoTokenizer, folder)
        load_pretrained(AutoModelForCausalLM, folder)


def test_an_adapter_that_can_run_code_is_refused(base, tmp_path, smoke):
    adapter = make_adapter(base, tmp_path / "sft", smoke)
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(UserError, match="can run code"):
        load_merged(adapter, base=base, dtype="float32", attention="sdpa")


def test_nothing_else_calls_from_pretrained():
    """The exceptions run no code of a model; Unsloth's call has `trust_remote_code=False`."""
    called = {
        f"{ast.unparse(node.value)} in {path.relative_to(ROOT)}"
        for folder in ("lib", "stages", "plugins")
        for path in ROOT.glob(f"{folder}/**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "from_pretrained"
    }
    harmless = {"PeftModel", "PeftConfig", "GenerationConfig"}
    assert {place for place in called if place.split()[0] not in harmless} == {
        "auto in lib/models/pretrained.py",
        "_fast_language_model() in lib/models/unsloth.py",
    }


def test_a_repository_without_a_tokenizer_is_refused(snapshot, model_named, base_of):
    for file in snapshot.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match=r"model\.name=owner/tiny-qwen: .* has no tokenizer"):
        base_of(model_named("owner/tiny-qwen", COMMIT))


def test_a_length_beyond_the_models_positions_is_refused(snapshot, model_named, base_of):
    positions = read_json(snapshot / "config.json")["max_position_embeddings"]
    with pytest.raises(UserError, match=f"max_seq_length={positions + 1}: .* {positions} pos"):
        base_of(model_named("owner/tiny-qwen", COMMIT, max_seq_length=positions + 1))


def test_sampling_settings_without_do_sample_are_saved_too(base, full, tmp_path):
    folder = Path(shutil.copytree(base, tmp_path / "base"))
    write_json(folder / "generation_config.json", {"temperature": 0.9, "eos_token_id": 1})
    policy = load_policy(folder, base=folder, settings=full)
    save_policy(policy, load_tokenizer(folder), tmp_path / "saved")
    assert read_json(tmp_path / "saved/generation_config.json")["temperature"] == 0.9
