"""A stranger's model is read, never trusted: nothing runs, nothing is guessed."""

import json
import os
import pickle
import random
import resource
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lib.artifacts import read_json, write_json
from lib.core.errors import UserError
from lib.engines import base as engines
from lib.models.hub import fetched_root
from lib.models.load import load_merged
from lib.models.pretrained import load_tokenizer
from lib.models.weights import find_weights
from lib.prompts import template
from lib.prompts.formats import conversation
from tests.lib.export.conftest import make_adapter
from tests.lib.models.hub_models import write_model


@pytest.fixture
def mine(tmp_path):
    return write_model(tmp_path / "mine", architecture="llama")


def load(folder, attention="sdpa"):
    return load_merged(folder, base=folder, dtype="float32", attention=attention)


def change(file, **keys):
    write_json(file, {**read_json(file), **keys})


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("config.json", "_attn_implementation", "someone/kernel@main"),
        ("config.json", "_attn_implementation_internal", "someone/kernel"),
        ("config.json", "_experts_implementation", {"": "someone/kernel"}),
        ("config.json", "text_config", {"attn_implementation": "paged|someone/kernel"}),
        ("config.json", "quantization_config", {"quant_method": "mxfp4"}),
        ("config.json", "transformers_weights", "other.safetensors"),
        ("config.json", "vocab_size", 10**12),
        ("generation_config.json", "max_new_tokens", 10**12),
        ("generation_config.json", "custom_generate", "someone/code"),
        ("tokenizer_config.json", "fast_tokenizer_files", ["tokenizer.9.json"]),
    ],
)
def test_a_key_that_loads_something_else_is_refused(mine, name, key, value):
    change(mine / name, **{key: value})
    with pytest.raises(UserError, match=rf"{name}: [^\n]*\Z"):
        find_weights(str(mine), "")
    with pytest.raises(UserError, match=rf"{name}: [^\n]*\Z"):
        load(mine)


def test_the_attention_in_params_wins_over_a_configs_own(mine):
    change(mine / "config.json", _attn_implementation="eager")
    assert load(mine).config._attn_implementation == "sdpa"


class Evil:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def test_pickled_weights_beside_a_decoy_are_not_read(mine, tmp_path):
    (mine / "model.safetensors").rename(mine / "decoy.safetensors")
    for name in ("pytorch_model.bin", "model.bin"):
        (mine / name).write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    with pytest.raises(UserError, match=r"\A[^\n]*\Z"):
        load(mine)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("entry", ["../outside.bin", "../outside.safetensors"])
def test_an_index_names_files_of_its_folder_only(mine, entry):
    (mine / "model.safetensors").rename(mine.parent / Path(entry).name)
    write_json(mine / "model.safetensors.index.json", {"weight_map": {"lm_head.weight": entry}})
    (mine / "decoy.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(UserError, match="outside"):
        find_weights(str(mine), "")


def test_missing_and_unexpected_weights_are_named(mine):
    weights = load_file(mine / "model.safetensors")
    moved = {name.replace("mlp.up", "mlp.other"): tensor for name, tensor in weights.items()}
    save_file(moved, mine / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"lacks \S+mlp.up\S+ .*no place for \S+mlp.other"):
        load(mine)


def test_a_size_that_the_files_lack_takes_no_memory(mine):
    change(mine / "config.json", intermediate_size=2**29)
    with pytest.raises(UserError, match="names a model of"):
        load(mine)


@pytest.mark.parametrize("name", ["LICENSE", "generation_config.json", "chat_template.jinja"])
def test_a_link_out_of_a_models_folder_is_refused(mine, tmp_path, name):
    (tmp_path / "secret").write_text("{}")
    (mine / name).unlink(missing_ok=True)
    (mine / name).symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match=f"{name} is a link"):
        find_weights(str(mine), "")


def test_only_an_experiments_copy_reads_the_hub_above(tmp_path, monkeypatch):
    (tmp_path / "data/hub").mkdir(parents=True)
    for place, above in (("shared/checkout", False), (".dvc/tmp/exps/tmp1/", True)):
        (tmp_path / place).mkdir(parents=True)
        monkeypatch.chdir(tmp_path / place)
        assert (fetched_root() == tmp_path / "data/hub") == above


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (
            "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
            "than 1.1 s",
        ),
        ("{{ 'x' * 10**10 }}", "memory"),
        ("{{ raise_exception('no such role') }}", "no such role"),
        ("{{ 1 // 0 }}", "zero"),
    ],
)
def test_a_template_that_knows_the_trial_has_limits(base, monkeypatch, body, word):
    monkeypatch.setattr(template, "RENDERING_S", 1)
    tokenizer = load_tokenizer(base)
    trial = "messages[-1]['content'] == 'What is 2 + 3?'"
    tokenizer.chat_template = f"{{% if {trial} %}}ok{{% else %}}{body}{{% endif %}}"
    assert engines.encode(tokenizer, [conversation("What is 2 + 3?", system="")])
    with pytest.raises(UserError, match=rf"{base}: its chat template [^\n]*{word}[^\n]*\Z"):
        engines.encode(tokenizer, [conversation("7", system="")])


def test_a_tokenizers_regular_expression_has_limits(mine):
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    change(mine / "tokenizer.json", pre_tokenizer={**split, "pattern": {"Regex": "(a+)+$"}})
    tokenizer = load_tokenizer(mine)
    tokenizer.chat_template = "{{ messages[-1]['content'] }}"
    assert engines.encode(tokenizer, [conversation("aaa", system="")])
    with pytest.raises(UserError, match="its tokenizer cannot read a prompt"):
        engines.encode(tokenizer, [conversation("a" * 2000 + "!", system="")])


HOSTILE = (
    *(None, True, -1, 0, 1, 10**9, 10**30, 1e308, -0.5, "", "x" * 10**6, "../../../etc/passwd"),
    *("someone/kernel@main", "(a+)+$", [], {}, [[]] * 1000, ["x"], {"a": {"b": 1}}, "\ud800"),
)
SECONDS = 10
MEMORY = 2 * 2**30


def cases(folders):
    for folder in folders:
        for file in sorted(folder.glob("*config.json")):
            for key in read_json(file):
                for value in HOSTILE:
                    yield folder, file.name, key, value


@pytest.mark.slow
def test_a_hostile_key_is_one_line_in_bounded_time_and_memory(base, smoke, tmp_path):
    """300 of all pairs of a key and a hostile value, each in a fork with limits."""
    folders = [write_model(tmp_path / name, architecture=name) for name in ("llama", "qwen3")]
    adapter = make_adapter(base, tmp_path / "adapter", smoke)
    torch.set_num_threads(1)
    faults = []
    for folder, name, key, value in random.Random(0).sample([*cases([*folders, adapter])], 300):
        kept = (folder / name).read_text()
        content = json.loads(kept)
        (folder / name).write_text(json.dumps({**content, key: value}))
        child = os.fork()
        if not child:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + MEMORY
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            signal.alarm(SECONDS)
            status = 3
            try:
                below = base if folder == adapter else folder
                model = load_merged(folder, base=below, dtype="float32", attention="sdpa")
                tokens = load_tokenizer(folder)("1 + 1")["input_ids"]
                model(input_ids=torch.tensor([tokens]))
                status = 0
            except UserError as error:
                status = 0 if "\n" not in error.message else 4
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        (folder / name).write_text(kept)
        if status:
            faults.append((folder.name, name, key, str(value)[:60], status))
    assert not faults
