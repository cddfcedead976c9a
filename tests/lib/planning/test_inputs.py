"""Missing inputs of params are reported without torch, before anything runs."""

from pathlib import Path

import pytest
from datasets import Dataset

from lib.artifacts import read_json, write_json, write_jsonl
from lib.models.files import INDEX, adapter_faults, model_faults
from lib.params import preset_params
from lib.planning.inputs import input_problems
from lib.problems import rows
from tests.lib.export.conftest import make_adapter
from tests.lib.models.hub_models import write_model
from tests.lib.params.changes import Changes, accepted
from tests.lib.problems.conftest import path_source, whole

BENCHMARK = "prepare.benchmarks.0.source"


@pytest.fixture
def raw(tmp_path, monkeypatch):
    """Make an empty working directory with data/raw."""
    monkeypatch.chdir(tmp_path)
    Path("data/raw").mkdir(parents=True)
    return Path("data/raw")


def faults_of(changes: Changes) -> list[str]:
    """List the faults of smoke with other values."""
    return list(input_problems(accepted(changes, "smoke")))


def test_a_models_name_without_its_owner_is_told_apart():
    (fault,) = faults_of({"model.name": "gpt2"})
    assert fault.startswith("model.name=gpt2: ") and "owner/model" in fault


def test_a_gguf_file_of_ones_own_is_a_model(tmp_path):
    file = tmp_path / "model.gguf"
    (fault,) = faults_of({"model.name": str(file)})
    assert "model.gguf is missing" in fault
    file.write_bytes(b"GGUF")
    assert faults_of({"model.name": str(file)}) == []


def test_the_default_lacks_nothing(in_root):
    assert list(input_problems(preset_params("tiny-cpu"))) == []


def test_each_missing_file_is_named_with_its_key(raw):
    changes = {
        "model.name": "owner/model",
        "prompt.system": "file:data/raw/system.txt",
        "prepare.grpo.difficulty.file": "data/raw/rates.jsonl",
        "prepare.grpo.sources": whole("no"),
    }
    places = [
        ("model.revision", "`owner/model` has no commit"),
        ("prompt.system", "data/raw/system.txt"),
        ("prepare.grpo.difficulty.file", "data/raw/rates.jsonl"),
        ("prepare.grpo.sources[0]", "data/raw/no.jsonl"),
    ]
    for problem, (key, file) in zip(faults_of(changes), places, strict=True):
        assert problem.startswith(f"{key}: ") and file in problem
    # Existing files are read as `prepare` will read them.
    (raw / "no.jsonl").write_text("")
    (raw / "system.txt").write_text("\n")
    (raw / "rates.jsonl").write_text('{"id": "a", "num_correct": 3, "num_completions": 2}\n')
    _, system, rates, empty = faults_of(changes)
    assert "system.txt is empty" in system
    assert rates.startswith("data/raw/rates.jsonl:1: ")
    assert empty == "prepare.grpo.sources[0]: data/raw/no.jsonl has no row"


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet"])
@pytest.mark.parametrize(
    ("place", "bad_rows", "is_fault"),
    [(0, "error", True), (300, "error", False), (-1, "error", True), (0, "drop", False)],
)
def test_the_first_and_last_rows_are_tried(raw, monkeypatch, suffix, place, bad_rows, is_fault):
    # So that the file counts as a large one.
    monkeypatch.setattr(rows, "MAX_JSON", 8000 if suffix == "jsonl" else rows.MAX_JSON)
    file = raw / f"mine.{suffix}"
    good = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(600)]
    good[place]["answer"] = "proof"
    table = Dataset.from_list(good)
    write = {"csv": table.to_csv, "parquet": table.to_parquet}.get(suffix)
    write(file) if write else table.to_json(file, lines=suffix == "jsonl")
    source = path_source("mine") | {"path": str(file)}
    sources = [{"weight": "all", "source": source}]
    faults = faults_of({"prepare.sft.sources": sources, "prepare.bad_rows": bad_rows})
    assert len(faults) == is_fault
    for fault in faults:
        # A CSV file's header is its first line.
        number = place % 600 + (2 if suffix == "csv" else 1)
        assert fault.startswith(f"prepare.sft.sources[0]: {file}:{number}: field `reference`")


def test_what_drop_does_not_hide_is_a_fault_of_check(raw):
    write_jsonl(raw / "mine.jsonl", [{"question": "?", "answer": "We add both of them and so on."}])
    source = {BENCHMARK: path_source("mine")}
    (fault,) = faults_of({**source, "prepare.bad_rows": "drop"})
    assert fault.startswith("prepare.benchmarks (held_out): data/raw/mine.jsonl:1: field `answer`")


WEIGHTS = "model.safetensors"
HEADERS = [b"no json!", b"[5]", b'{"a": 5}', b'{"a": {"data_offsets": 5}}', b"[" * 20_000]
NO_MAPS = ["{}", "[]", '{"weight_map": null}', '{"weight_map": {"a": ["x"]}}']


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        *((WEIGHTS, cut, "not a whole") for cut in (0, 5, 100, -1)),
        *((WEIGHTS, len(h).to_bytes(8, "little") + h, "not a whole") for h in HEADERS),
        *((INDEX, text, "no weight_map of file names") for text in NO_MAPS),
        (INDEX, '{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}', "no 2.safetensors"),
        # Transformers would build all of them before it reads a weight.
        ("config.json", '{"num_hidden_layers": 1000000}', "1000000 of"),
        ("config.json", "[]", "None of"),
        ("config.json", "[" * 20_000, "nested"),
    ],
)
def test_a_damaged_file_of_a_model_is_one_fault(tmp_path, file, content, words):
    folder = write_model(tmp_path / "mine", architecture="qwen2")
    damaged = folder / file
    if isinstance(content, int):
        content = damaged.read_bytes()[:content]
    damaged.write_bytes(content if isinstance(content, bytes) else content.encode())
    if file == INDEX:
        # transformers reads no index beside whole weights.
        assert list(model_faults(folder)) == []
        (folder / WEIGHTS).rename(folder / "1.safetensors")
    (fault,) = model_faults(folder)
    assert f"{folder}" in fault and words in fault


def test_a_model_needs_its_tokenizer(tmp_path):
    folder = write_model(tmp_path / "mine", architecture="qwen2")
    assert list(model_faults(folder)) == []
    (folder / "tokenizer.json").unlink()
    assert ["no tokenizer" in fault for fault in model_faults(folder)] == [True]


@pytest.mark.parametrize(
    ("config", "fault"), [("{", "not JSON"), ("[]", "expected an object, got list")]
)
def test_a_damaged_adapter_is_one_fault_with_its_remedy(tmp_path, smoke, config, fault):
    (tmp_path / "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (tmp_path / "adapter_config.json").write_text(config)
    (text,) = adapter_faults(tmp_path, lora=smoke.model.lora)
    assert text.startswith(f"{tmp_path / 'adapter_config.json'}: {fault}")
    assert text.endswith("; copy it again")


def test_biases_have_no_second_adapter_as_dpos_reference(base, smoke, tmp_path):
    adapter = make_adapter(base, tmp_path / "mine", smoke)
    params = smoke.replaced(sft={"adapter": str(adapter)}, dpo={"init": ("sft",)})
    assert list(input_problems(params)) == []
    file = adapter / "adapter_config.json"
    write_json(file, {**read_json(file), "bias": "lora_only"})
    (fault,) = input_problems(params)
    assert "DPO's reference" in fault


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("rollout.parsed.answer == rollout.reference", ""),
        ("True", "the answer to another row"),
        ("False", "refuses"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_tasks_verdict_is_tried_on_its_own_rows(raw, verdict, words):
    name = f"plugins/tasks/mine{sum(map(ord, verdict))}.py"  # plugins are loaded once
    Path(name).parent.mkdir(parents=True)
    Path(name).write_text(
        "from lib.prompts import TaggedFormat\n"
        f"class Task(TaggedFormat):\n    def right(self, rollout):\n        return {verdict}\n"
        "task = Task('', ('<a>', '</a>'), ('<b>', '</b>'), opened_by_prompt=False)\n"
    )
    texts = [{"problem": text, "reference": f"{text} is free text"} for text in ("one", "two")]
    write_jsonl(raw / "mine.jsonl", texts)
    source = {BENCHMARK: path_source("mine", reference="reference")}
    faults = faults_of({**source, "prompt.format": f"{name}:task"})
    assert (words in faults[0] and name in faults[0]) if words else not faults
