"""A shape's parameter count equals the model's own."""

import json

import pytest
from transformers import AutoModelForCausalLM

from bench.gpu.rows import SHAPES
from lib.core.errors import UserError
from lib.models.hub import model_repository
from lib.models.load import add_adapter
from lib.planning.memory import memory_at_peak, shape_in, shape_of
from lib.training.phase.launch import Launch
from tests.lib.models.hub_models import ARCHITECTURES, write_model

PUBLISHED = {
    "unsloth/Qwen3-4B-Base": 4_022_468_096,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
}
"""Parameters on the Hub's pages, counted from the safetensors."""


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_the_count_is_the_models_own(smoke, tmp_path, architecture):
    folder = write_model(tmp_path, architecture=architecture)
    shape = shape_of(smoke.model.model_copy(update={"name": str(folder)}))
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert shape.parameters == model.num_parameters()
    adapted = add_adapter(model, smoke.model.lora)
    trained = sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
    assert shape.trained(smoke.model) == trained


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_the_table_has_the_published_counts(name, count):
    assert getattr(shape_in(SHAPES[name]), "parameters", None) == count


def test_a_model_of_the_hub_is_known_once_fetched(smoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = smoke.model.model_copy(update={"name": "owner/model", "revision": "0" * 40})
    assert shape_of(model) is None
    folder = model_repository(model.name, model.revision).folder
    folder.parent.mkdir(parents=True)
    write_model(folder, architecture="llama")
    local = model.model_copy(update={"name": str(folder), "revision": ""})
    assert shape_of(model) == shape_of(local) is not None


def test_another_architecture_is_unknown():
    assert shape_in({"model_type": "mamba"}) is None


ENDLESS = {"model_type": "qwen3", "num_hidden_layers": 10**6, "vocab_size": 8}
ENDLESS |= dict.fromkeys(("hidden_size", "intermediate_size", "num_attention_heads"), 8)


@pytest.mark.parametrize(
    "config",
    [
        '{"model_type": ',
        '{"model_type": "qwen3"}',
        "[]",
        json.dumps(ENDLESS),
        json.dumps({**ENDLESS, "hidden_size": "x"}),
    ],
)
def test_a_damaged_configuration_is_one_error(smoke, tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(UserError, match=rf"{tmp_path}/config.json[^\n]*\Z"):
        shape_of(smoke.model.model_copy(update={"name": str(tmp_path)}))


def test_a_teacher_counts_by_its_own_size_whole_on_every_rank(smoke, tmp_path):
    folder = write_model(tmp_path, architecture="llama")
    own = AutoModelForCausalLM.from_pretrained(folder).num_parameters()
    shape = shape_of(smoke.model)
    assert shape.parameters != own
    for name, count in ((str(folder), own), ("data/models/none", shape.parameters)):
        params = smoke.replaced(grpo={"teacher": name, "teacher_coef": 1.0})
        parts = memory_at_peak(params, "grpo", shape, launch=Launch(2, shards=True))
        assert parts["teacher"] == 4 * count
