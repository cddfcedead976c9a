"""What params name and is not there is found without torch, before anything runs."""

from pathlib import Path

import pytest

from lib.artifacts.models import model_faults, safetensors_fault
from lib.params import Params, parse_params, preset_params
from lib.planning.inputs import input_faults
from tests.lib.engines.hub_models import write_model


def changed(smoke: Params, **sections: dict) -> Params:
    content = smoke.model_dump(mode="json")
    for section, values in sections.items():
        content[section] |= values
    return parse_params(content, origin="test")


def test_the_default_lacks_nothing(in_root: Path) -> None:
    assert list(input_faults(preset_params("tiny-cpu"))) == []


def test_each_file_that_is_not_there_is_named_with_its_key(
    smoke: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare = smoke.model_dump(mode="json")["prepare"]
    source = {"path": "data/raw/no.jsonl", "adapter": "table", "columns": {}, "limit": "all"}
    prepare["grpo"]["sources"] = [{"weight": "all", "source": source}]
    prepare["grpo"]["difficulty"]["file"] = "data/raw/rates.jsonl"
    params = changed(
        smoke,
        prepare=prepare,
        prompt={"system": "file:data/raw/system.txt"},
        model={"name": "owner/model"},
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [line.split(";")[0].split(",")[0] for line in input_faults(params)] == [
        "model.revision: `owner/model` has no commit yet",
        "prompt.system: cannot read data/raw/system.txt: [Errno 2] No such file or directory: "
        "'data/raw/system.txt'",
        "prepare.grpo.difficulty.file: data/raw/rates.jsonl is missing",
        "prepare: data/raw/no.jsonl is missing",
    ]
    # What is there is read as `prepare` will read it.
    Path("data/raw").mkdir(parents=True)
    Path("data/raw/no.jsonl").write_text("")
    Path("data/raw/system.txt").write_text("\n")
    Path("data/raw/rates.jsonl").write_text('{"id": "a", "num_correct": 3, "num_completions": 2}\n')
    _, system, rates = input_faults(params)
    assert system.startswith("prompt.system: data/raw/system.txt is empty")
    assert rates.startswith("data/raw/rates.jsonl:1: ")


def test_a_whole_model_has_no_fault_and_a_truncated_one_has(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine", architecture="qwen2")
    assert list(model_faults(folder)) == []
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    for cut in (0, 5, 100, len(content) - 1):
        weights.write_bytes(content[:cut])
        assert "truncated" in safetensors_fault(weights)
    weights.write_bytes(b"\x08" + bytes(7) + b"no json!")
    assert safetensors_fault(weights) == "not a safetensors file"
    (folder / "tokenizer.json").unlink()
    faults = list(model_faults(folder))
    assert len(faults) == 2
    assert "no tokenizer (tokenizer.json)" in faults[0]
