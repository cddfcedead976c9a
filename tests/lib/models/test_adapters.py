"""An adapter is merged as it was trained, and refused where it does not fit."""

import json
import re
import shutil

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from lib.artifacts import read_json, write_json
from lib.core.errors import UserError
from lib.models.files import adapter_faults, token_faults, weighted_modules
from lib.models.load import load_adapter, load_merged, load_policy
from lib.models.pretrained import load_tokenizer
from lib.models.save import copy_adapter, save_policy
from tests.lib.export.conftest import make_adapter
from tests.lib.models.log_prob_gap import moved

IDS = torch.arange(30, 70)[None]
BOTH = ["embed_tokens", "lm_head"]
TIED = {
    "lm_head": {"target_modules": ["q_proj", "lm_head"]},
    "embeddings": {"target_modules": ["q_proj", "embed_tokens"]},
    "both": {"target_modules": BOTH},
    "tied adapters": {"target_modules": BOTH, "ensure_weight_tying": True},
    "dora": {"target_modules": ["q_proj", *BOTH], "use_dora": True},
    "rslora, patterns": {"use_rslora": True, "rank_pattern": {"q_proj": 3}, "r": 5},
    "saved head": {"modules_to_save": ["lm_head"]},
    "saved embeddings": {"modules_to_save": ["embed_tokens"]},
    "tokens": {"trainable_token_indices": [30, 40]},
    "regex": {"target_modules": r".*\.(q_proj|down_proj)"},
}


def log_probs(model):
    with torch.no_grad():
        return model.double().eval()(input_ids=IDS).logits.log_softmax(-1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settings", TIED.values(), ids=TIED)
def test_a_merged_adapter_is_the_trained_policy(base, smoke, tmp_path, settings):
    """The base's embeddings are tied: what changes one table must not change the other."""
    layers = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], **settings}
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    policy = moved(get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **layers)))
    policy.save_pretrained(tmp_path / "mine")
    trained = log_probs(policy)

    (tmp_path / "sft").mkdir()
    copy_adapter(tmp_path / "mine", base=base, checkpoint=tmp_path / "sft")
    again = load_policy(tmp_path / "sft", base=base, settings=smoke.model)
    torch.testing.assert_close(log_probs(again), trained, atol=2e-5, rtol=0)
    full = load_merged(tmp_path / "sft", base=base, dtype="float32", attention="sdpa")
    save_policy(full, load_tokenizer(base), tmp_path / "full")
    saved = load_merged(tmp_path / "full", base=base, dtype="float32", attention="sdpa")
    for merged in (full, saved):
        torch.testing.assert_close(log_probs(merged), trained, atol=2e-5, rtol=0)


@pytest.fixture
def adapter(base, smoke, tmp_path):
    return make_adapter(base, tmp_path / "adapter", smoke)


def another_prefix(name, tensor):
    return name.replace("base_model.model.", "base_model."), tensor


def a_layer_too_many(name, tensor):
    return name.replace("layers.0", "layers.7"), tensor


def without_second_matrices(name, tensor):
    return None if "lora_B" in name else (name, tensor)


def another_shape(name, tensor):
    return name, tensor[..., :3].contiguous()


@pytest.mark.parametrize(
    "change", [another_prefix, a_layer_too_many, without_second_matrices, another_shape]
)
def test_tensors_that_do_not_fit_are_refused(base, smoke, adapter, change):
    weights = adapter / "adapter_model.safetensors"
    assert not list(adapter_faults(adapter, lora=smoke.model.lora, modules=weighted_modules(base)))
    held = [change(*each) for each in load_file(weights).items()]
    save_file(dict(filter(None, held)), weights)
    if change is not another_shape:
        modules = weighted_modules(base)
        (fault,) = adapter_faults(adapter, lora=smoke.model.lora, modules=modules)
        assert re.search(r"lacks|has no place|tensors have", fault)
    with pytest.raises(UserError, match=r"\A[^\n]*\Z"):
        load_merged(adapter, base=base, dtype="float32", attention="sdpa")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layer_replication", [[0, 100_000]]),
        ("init_lora_weights", "pissa_niter_1000000"),
        ("r", 10**9),
        ("rank_pattern", {"(a+)+$": 4}),
        ("alpha_pattern", []),
        ("rank_pattern", {"q_proj": 10**9}),
        ("loftq_config", {"loftq_bits": 4}),
        ("target_parameters", ["q_proj.weight"]),
        ("peft_type", "IA3"),
    ],
)
def test_a_setting_that_is_not_supported_is_refused(base, smoke, adapter, key, value):
    file = adapter / "adapter_config.json"
    write_json(file, {**read_json(file), key: value})
    model = load_policy(base, base=base, settings=smoke.model)
    with pytest.raises(UserError, match=r"\A[^\n]*\Z"):
        load_adapter(model, adapter)


def test_a_regular_expression_is_never_evaluated(base, smoke, adapter):
    """It would take hours; the tensors name the modules."""
    file = adapter / "adapter_config.json"
    write_json(file, {**read_json(file), "target_modules": "(.*)*(.*)*(.*)*(.*)*!"})
    assert load_adapter(load_policy(base, base=base, settings=smoke.model), adapter)


def test_params_name_the_adapters_own_modules(smoke, adapter):
    other = smoke.model.lora.model_copy(update={"target_modules": ("q_proj", "lm_head")})
    assert "set model.lora.target_modules" in next(adapter_faults(adapter, lora=other))


def test_an_end_token_that_the_base_would_split_stays_whole(base, tmp_path):
    folder = shutil.copytree(base, tmp_path / "base")
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**read_json(file), "split_special_tokens": True}))
    tokenizer = load_tokenizer(folder)
    text = f"4{tokenizer.eos_token}"
    assert tokenizer(text)["input_ids"][-1] == tokenizer.eos_token_id
    assert len(tokenizer(text)["input_ids"]) == 2


def test_a_special_token_without_an_embedding_is_a_fault(base, tmp_path):
    folder = shutil.copytree(base, tmp_path / "base")
    assert not list(token_faults(folder))
    tokenizer = load_tokenizer(folder)
    tokenizer.add_special_tokens({"pad_token": "<|late|>"})
    tokenizer.save_pretrained(folder)
    (fault,) = token_faults(folder)
    assert "pad_token <|late|> has the id" in fault
