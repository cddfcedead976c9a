"""A checkpoint of the pipeline in its own prompt format, and in another."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lib.artifacts.problems import write_problems
from lib.evaluation.completions import complete_checkpoint
from lib.params import Params
from lib.problems.generated import GeneratedSets
from lib.prompts import format_settings
from lib.prompts.saved import save_prompt


@pytest.fixture
def folder(base: Path, smoke: Params, sets: GeneratedSets, tmp_path: Path) -> Path:
    shutil.copytree(base, tmp_path / "base")
    save_prompt(tmp_path / "base", system="", rendering=format_settings(smoke.prompt))
    for name in smoke.evaluate.benchmarks:
        write_problems(tmp_path / f"problems/{name}.jsonl", sets.benchmarks[name][:3])
    return tmp_path


def complete(folder: Path, smoke: Params, **fields: str) -> dict[str, Any]:
    return complete_checkpoint(
        folder / "base",
        completions=folder / "completions.jsonl",
        base=folder / "base",
        problems=folder / "problems",
        model=smoke.model,
        prompt=smoke.prompt,
        evaluate=smoke.evaluate.model_copy(update={"max_new_tokens": 4}),
        seed=0,
        **fields,
    )


def test_another_format_changes_the_prompt_and_nothing_else(
    folder: Path, smoke: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    own = complete(folder, smoke)
    other = complete(folder, smoke, other_format="xml")
    assert list(own["sampling"]) == ["held_out", "harder"]
    assert list(other["sampling"]) == ["held_out"]
    assert own["prompt"]["format"] == "working_out"
    assert other["prompt"]["format"] == "xml"
    assert other["prompt"]["template"] != own["prompt"]["template"]
    rows = [json.loads(line) for line in (folder / "completions.jsonl").open("rb")]
    assert len(rows) == 3 * (1 + smoke.evaluate.num_samples)
    assert {row["prompt_format"]["name"] for row in rows} == {"xml"}
    assert list(folder.glob("data/scratch/evaluate/*")) == []
