"""The files in a model's folder decide its prompt, base and engine settings."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import huggingface_hub
import pytest

from lib.artifacts import read_json, write_json
from lib.core.errors import UserError
from lib.engines.base import Engine, encode
from lib.inference import GenerationSettings, build_text_generator
from lib.inference.external import (
    DEFAULT_MODEL,
    ExternalModel,
    external_model,
    find_model,
    refuse_missing,
)
from lib.models.hub import model_repository
from lib.models.pretrained import load_tokenizer
from lib.prompts import prompt_format, save_prompt, saved_format
from lib.prompts.formats import conversation
from tests.lib.export.conftest import make_adapter

PLAIN = {"name": "xml", "tags": (), "layout": "plain"}
OTHER = {"name": "r1_zero", "tags": ("<a>", "</a>", "<b>", "</b>"), "layout": "plain"}


@pytest.fixture
def folder(base, tmp_path):
    """Copy the base model."""
    return shutil.copytree(base, tmp_path / "other")


def opened(model: ExternalModel) -> Engine:
    return model.open("transformers", attention="sdpa", max_seq_length=64, batch_size=1)


@pytest.fixture
def models(base, smoke, tmp_path):
    """Write `base`, and its adapter `sft`, as a run leaves them."""
    shutil.copytree(base, tmp_path / "base")
    save_prompt(tmp_path / "base", system="of the base", rendering=PLAIN)
    make_adapter(base, tmp_path / "sft", smoke)
    return tmp_path


def test_a_models_own_prompt_comes_before_that_of_its_base(models):
    beside = external_model(models / "sft")
    assert (beside.known_format, beside.system) == (prompt_format("xml"), "of the base")
    save_prompt(models / "sft", system="", rendering=OTHER)
    own = external_model(models / "sft")
    assert (own.known_format, own.system) == (prompt_format(**OTHER), "")
    assert own.prompt_format.stop_strings == ("</b>",)


def test_an_adapter_finds_its_base_beside_it_or_where_told(models):
    base, far = models / "base", models / "run/1/2/checkpoint-100"
    assert external_model(models / "sft").base == base
    shutil.copytree(models / "sft", far)
    elsewhere = external_model(far, base=base)
    assert (elsewhere.base, elsewhere.system) == (base, "of the base")
    config = read_json(far / "adapter_config.json")
    write_json(far / "adapter_config.json", config | {"base_model_name_or_path": str(base)})
    assert external_model(far).base == base
    with pytest.raises(UserError, match="--base"):
        external_model(far, base=models / "nowhere")


def test_an_adapter_answers_together_with_its_base(models):
    settings = GenerationSettings(temperature=0, max_new_tokens=20)
    trained, untrained = (
        build_text_generator(models / name).generate(["2 + 2?"], settings)[0]
        for name in ("sft", "base")
    )
    assert trained.prompt == untrained.prompt == "of the base\n2 + 2?\n<start_working_out>"
    assert trained.completion != untrained.completion


def test_a_named_format_takes_the_place_of_the_models_own(folder):
    (folder / "chat_template.jinja").write_text("{{ messages[-1]['content'] }} !")
    with pytest.raises(UserError, match="PROMPT_FORMAT"):
        _ = external_model(folder).prompt_format
    own = external_model(folder, format_name="boxed/own")
    assert (own.prompt_format.name, own.template) == ("boxed", None)
    assert "<|im_start|>" in (external_model(folder, format_name="xml/chatml").template or "")
    engine = opened(external_model(folder, format_name="xml"))
    assert engine.tokenizer.chat_template == prompt_format("xml").chat_template
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="no chat template"):
        external_model(folder, format_name="boxed/own")


def test_system_text_that_is_not_utf8_is_named(folder):
    (folder / "system_prompt.txt").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"system_prompt\.txt is not UTF-8"):
        external_model(folder)


def test_of_several_chat_templates_the_default_is_used(folder):
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = {"default": "hi", "tool_use": "{{ raise_exception('tools') }}"}
    tokenizer.save_pretrained(folder)
    engine = opened(external_model(folder, format_name="boxed/own"))
    assert encode(engine.tokenizer, [conversation("2 + 2?", system="")]) == [
        engine.tokenizer("hi").input_ids
    ]


@pytest.mark.slow
def test_an_engine_gets_memory_for_at_most_the_models_positions(base, monkeypatch):
    asked = []

    def reserve(*_: object, max_seq_length: int, **__: object) -> SimpleNamespace:
        asked.append(max_seq_length)
        return SimpleNamespace(tokenizer=load_tokenizer(base))

    monkeypatch.setattr("lib.engines.base.open_engine", reserve)
    model = external_model(base)
    for length in (100, 1000):
        model.open("vllm", attention="sdpa", max_seq_length=length, batch_size=1)
    assert asked == [100, 256]


@pytest.mark.parametrize("rendering", [PLAIN, OTHER, {**PLAIN, "layout": "chatml"}])
def test_a_format_is_read_back(rendering, tmp_path):
    save_prompt(tmp_path, system="", rendering=rendering)
    assert saved_format(tmp_path) == prompt_format(**rendering)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('{"name": "xml"}', "is damaged"),
        ('["xml"]', "is damaged"),
        ('{"name": "yml", "tags": [], "layout": "plain"}', "no format `yml`"),
    ],
)
def test_a_damaged_format_is_named_with_its_file(content, fault, tmp_path):
    (tmp_path / "prompt_format.json").write_text(content)
    with pytest.raises(UserError, match=rf"prompt_format\.json.*{fault}"):
        saved_format(tmp_path)


def test_a_folder_without_a_model_says_what_it_lacks(tmp_path):
    with pytest.raises(UserError, match=r"config\.json"):
        external_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "remedy"), [(DEFAULT_MODEL, "dvc repro export"), ("./nowhere", "expected a folder")]
)
def test_a_missing_path_is_no_id_of_the_hub(name, remedy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=remedy):
        find_model(name)


def test_a_gguf_file_is_a_model_wherever_it_lies(tmp_path):
    file = tmp_path / "export/gguf/model-f16.gguf"
    with pytest.raises(UserError, match="no model at"):
        refuse_missing(file)
    file.parent.mkdir(parents=True)
    file.touch()
    refuse_missing(file)


def test_a_checkpoint_is_read_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/models/sft").mkdir(parents=True)
    assert find_model("sft") == Path("data/models/sft")


def test_a_model_that_make_fetch_brought_is_read_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The folder is resolved against the working directory, so only after the change.
    folder = model_repository("org/name", "0" * 40).folder
    folder.mkdir(parents=True)
    assert find_model("org/name") == folder


def test_a_hub_id_is_fetched_or_refused_in_one_line(tmp_path, monkeypatch):
    download = Mock(return_value=str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert find_model("org/name") == tmp_path
    request = download.call_args.kwargs
    assert request["repo_id"] == "org/name" and "*.bin" not in request["allow_patterns"]

    error = huggingface_hub.errors.LocalEntryNotFoundError("no route to the Hub\nand more")
    download.side_effect = error
    with pytest.raises(UserError, match=r"`org/name`[^\n]+$"):
        find_model("org/name")
