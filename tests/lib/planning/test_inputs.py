"""Missing inputs of params are reported without torch, before anything runs."""

from pathlib import Path

import pytest
from datasets import Dataset

from lib.artifacts import read_json, write_json, write_jsonl
from lib.core.errors import UserError
from lib.models.files import adapter_faults, model_faults, tensors_of
from lib.params import parse_params, preset_params
from lib.planning.inputs import input_problems
from lib.problems import rows
from tests.lib.export.conftest import make_adapter
from tests.lib.models.hub_models import write_model


def test_a_models_name_without_its_owner_is_told_apart(smoke):
    (fault,) = input_problems(smoke.replaced(model={"name": "gpt2"}))
    assert fault.startswith("model.name=gpt2: ") and "owner/model" in fault


def test_a_gguf_file_of_ones_own_is_a_model(smoke, tmp_path):
    file = tmp_path / "model.gguf"
    params = smoke.replaced(model={"name": str(file)})
    (fault,) = input_problems(params)
    assert "model.gguf is missing" in fault
    file.write_bytes(b"GGUF")
    assert list(input_problems(params)) == []


def test_the_default_lacks_nothing(in_root):
    assert list(input_problems(preset_params("tiny-cpu"))) == []


def test_each_missing_file_is_named_with_its_key(smoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = smoke.model_dump(mode="json")
    source = {"path": "data/raw/no.jsonl", "adapter": "table", "columns": {}, "limit": "all"}
    content["prepare"]["grpo"]["sources"] = [{"weight": "all", "source": source}]
    content["prepare"]["grpo"]["difficulty"]["file"] = "data/raw/rates.jsonl"
    content["prompt"]["system"] = "file:data/raw/system.txt"
    content["model"]["name"] = "owner/model"
    params = parse_params(content, origin="test")
    places = [
        ("model.revision", "`owner/model` has no commit"),
        ("prompt.system", "data/raw/system.txt"),
        ("prepare.grpo.difficulty.file", "data/raw/rates.jsonl"),
        ("prepare.grpo.sources[0]", "data/raw/no.jsonl"),
    ]
    for problem, (key, file) in zip(input_problems(params), places, strict=True):
        assert problem.startswith(f"{key}: ") and file in problem
    # Existing files are read as `prepare` will read them.
    Path("data/raw").mkdir(parents=True)
    Path("data/raw/no.jsonl").write_text("")
    Path("data/raw/system.txt").write_text("\n")
    Path("data/raw/rates.jsonl").write_text('{"id": "a", "num_correct": 3, "num_completions": 2}\n')
    _, system, rates, empty = input_problems(params)
    assert "system.txt is empty" in system
    assert rates.startswith("data/raw/rates.jsonl:1: ")
    assert empty == "prepare.grpo.sources[0]: data/raw/no.jsonl has no row"


@pytest.mark.parametrize("bad_rows", ["error", "drop"])
@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet"])
@pytest.mark.parametrize(("place", "is_read"), [(0, True), (300, False), (-1, True)])
def test_the_first_and_last_rows_are_tried(
    smoke, tmp_path, monkeypatch, suffix, place, is_read, bad_rows
):
    monkeypatch.chdir(tmp_path)
    # So that the file counts as a large one.
    monkeypatch.setattr(rows, "MAX_JSON", 8000 if suffix == "jsonl" else rows.MAX_JSON)
    file = Path(f"data/raw/mine.{suffix}")
    file.parent.mkdir(parents=True)
    good = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(600)]
    good[place]["answer"] = "proof"
    table = Dataset.from_list(good)
    write = {"csv": table.to_csv, "parquet": table.to_parquet}.get(suffix)
    write(file) if write else table.to_json(file, lines=suffix == "jsonl")
    content = smoke.model_dump(mode="json")
    source = {"path": str(file), "adapter": "table", "columns": {}, "limit": "all"}
    content["prepare"]["sft"]["sources"] = [{"weight": "all", "source": source}]
    content["prepare"]["bad_rows"] = bad_rows
    faults = list(input_problems(parse_params(content, origin="test")))
    assert len(faults) == (bad_rows == "error" and is_read)
    for fault in faults:
        # A CSV file's header is its first line.
        number = place % 600 + (2 if suffix == "csv" else 1)
        assert fault.startswith(f"prepare.sft.sources[0]: {file}:{number}: field `reference`")


def test_what_drop_does_not_hide_is_a_fault_of_check(smoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data/raw").mkdir(parents=True)
    Path("data/raw/mine.jsonl").write_text(
        '{"question": "?", "answer": "We add both of them and so on."}\n'
    )
    content = smoke.model_dump(mode="json")
    source = {"path": "data/raw/mine.jsonl", "adapter": "table", "columns": {}, "limit": "all"}
    content["prepare"]["benchmarks"][0]["source"] = source
    content["prepare"]["bad_rows"] = "drop"
    (fault,) = input_problems(parse_params(content, origin="test"))
    assert fault.startswith("prepare.benchmarks (held_out): data/raw/mine.jsonl:1: field `answer`")


def test_a_truncated_model_is_a_fault(tmp_path):
    folder = write_model(tmp_path / "mine", architecture="qwen2")
    assert list(model_faults(folder)) == []
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    for cut in (0, 5, 100, len(content) - 1):
        weights.write_bytes(content[:cut])
        with pytest.raises(UserError, match=r"model\.safetensors: not a whole"):
            tensors_of(weights)
    (folder / "tokenizer.json").unlink()
    tokenizer, broken = model_faults(folder)
    assert "no tokenizer" in tokenizer
    assert "not a whole" in broken


def test_a_file_that_the_index_names_and_is_not_there_is_a_fault(tmp_path):
    folder = write_model(tmp_path / "mine", architecture="qwen2")
    one, two = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    (folder / "model.safetensors").rename(folder / one)
    files = {"weight_map": {"a.weight": one, "b.weight": two}}
    write_json(folder / "model.safetensors.index.json", files)
    (fault,) = model_faults(folder)
    assert f"has no {two}" in fault and one not in fault
    # transformers reads no index beside whole weights.
    (folder / one).rename(folder / "model.safetensors")
    assert list(model_faults(folder)) == []


@pytest.mark.parametrize("index", [{}, [], {"weight_map": None}, {"weight_map": {"a": ["x"]}}])
def test_a_damaged_index_is_a_fault(tmp_path, index):
    folder = write_model(tmp_path / "mine", architecture="qwen2")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    write_json(folder / "model.safetensors.index.json", index)
    (fault,) = model_faults(folder)
    assert "no weight_map of file names" in fault


@pytest.mark.parametrize(
    "header", [b"no json!", b"[5]", b'{"a": 5}', b'{"a": {"data_offsets": 5}}', b"[" * 20_000]
)
def test_a_header_of_another_form_is_a_fault(tmp_path, header):
    (tmp_path / "weights").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(UserError, match="weights: not a whole safetensors file"):
        tensors_of(tmp_path / "weights")


@pytest.mark.parametrize(
    ("config", "fault"), [("{", "not JSON"), ("[]", "expected an object, got list")]
)
def test_a_damaged_adapter_is_one_fault_with_one_remedy(tmp_path, smoke, config, fault):
    (tmp_path / "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (tmp_path / "adapter_config.json").write_text(config)
    (text,) = adapter_faults(tmp_path, lora=smoke.model.lora)
    assert text.startswith(f"{tmp_path / 'adapter_config.json'}: {fault}")
    assert text.count(";") == 1 and text.endswith("; copy it again")


@pytest.mark.parametrize(
    ("config", "word"),
    [('{"num_hidden_layers": 1000000}', "1000000 of"), ("[]", "None of"), ("[" * 20_000, "nested")],
)
def test_layers_that_the_weights_lack_are_a_fault(tmp_path, config, word):
    """Transformers would build all of them before it reads a weight."""
    folder = write_model(tmp_path / "mine", architecture="qwen2")
    (folder / "config.json").write_text(config)
    (fault,) = model_faults(folder)
    assert "config.json: " in fault and word in fault


def test_biases_have_no_second_adapter_as_dpos_reference(base, smoke, tmp_path):
    adapter = make_adapter(base, tmp_path / "mine", smoke)
    params = smoke.replaced(sft={"adapter": str(adapter)}, dpo={"init": ("sft",)})
    assert list(input_problems(params)) == []
    file = adapter / "adapter_config.json"
    write_json(file, {**read_json(file), "bias": "lora_only"})
    (fault,) = input_problems(params)
    assert "DPO's reference" in fault


VERDICTS = {
    "right": ("rollout.parsed.answer == rollout.reference", ""),
    "accepts_all": ("True", "the answer to another row"),
    "refuses_all": ("False", "refuses"),
    "fails": ("1 / 0", "ZeroDivisionError"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_a_tasks_verdict_is_tried_on_its_own_rows(smoke, tmp_path, monkeypatch, name):
    verdict, fault = VERDICTS[name]
    monkeypatch.chdir(tmp_path)
    Path("data/raw").mkdir(parents=True)
    Path("plugins/tasks").mkdir(parents=True)
    Path(f"plugins/tasks/{name}.py").write_text(
        "from lib.prompts import TaggedFormat\n"
        f"class Task(TaggedFormat):\n    def right(self, rollout):\n        return {verdict}\n"
        "task = Task('', ('<a>', '</a>'), ('<b>', '</b>'), opened_by_prompt=False)\n"
    )
    texts = [{"problem": text, "reference": f"{text} is free text"} for text in ("one", "two")]
    write_jsonl(Path("data/raw/mine.jsonl"), texts)
    content = smoke.model_dump(mode="json")
    content["prompt"]["format"] = f"plugins/tasks/{name}.py:task"
    columns = {"reference": "reference"}
    source = {"path": "data/raw/mine.jsonl", "adapter": "table", "columns": columns, "limit": "all"}
    content["prepare"]["benchmarks"][0]["source"] = source
    faults = list(input_problems(parse_params(content, origin="test")))
    assert (fault in faults[0] and f"plugins/tasks/{name}.py" in faults[0]) if fault else not faults
