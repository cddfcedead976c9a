"""What params name and is not there is found without torch, before anything runs."""

from pathlib import Path

import pytest

from lib.artifacts.models import model_faults, safetensors_fault
from lib.params import Params, parse_params, preset_params
from lib.planning.inputs import input_problems
from tests.lib.engines.hub_models import write_model


def test_the_default_lacks_nothing(in_root: Path) -> None:
    assert list(input_problems(preset_params("tiny-cpu"))) == []


def test_each_missing_file_is_named_with_its_key(
    smoke: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        ("prepare", "data/raw/no.jsonl"),
    ]
    for problem, (key, file) in zip(input_problems(params), places, strict=True):
        assert problem.startswith(f"{key}: ") and file in problem
    # What is there is read as `prepare` will read it.
    Path("data/raw").mkdir(parents=True)
    Path("data/raw/no.jsonl").write_text("")
    Path("data/raw/system.txt").write_text("\n")
    Path("data/raw/rates.jsonl").write_text('{"id": "a", "num_correct": 3, "num_completions": 2}\n')
    _, system, rates = input_problems(params)
    assert "system.txt is empty" in system
    assert rates.startswith("data/raw/rates.jsonl:1: ")


def test_a_truncated_model_is_a_fault(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine", architecture="qwen2")
    assert list(model_faults(folder)) == []
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    for cut in (0, 5, 100, len(content) - 1):
        weights.write_bytes(content[:cut])
        assert "truncated" in safetensors_fault(weights)
    weights.write_bytes(b"\x08" + bytes(7) + b"no json!")
    (folder / "tokenizer.json").unlink()
    tokenizer, broken = model_faults(folder)
    assert "no tokenizer" in tokenizer
    assert "not a safetensors file" in broken
