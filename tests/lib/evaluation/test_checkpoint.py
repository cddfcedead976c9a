"""A checkpoint of the pipeline in its own prompt format, and in another."""

import json
import shutil
from pathlib import Path

import pytest

from lib.evaluation.checkpoint import Measured, measure_checkpoint
from lib.params import Params
from lib.problems.generated import GeneratedSets
from lib.problems.schema import write_problems
from lib.prompts.saved import save_prompt


@pytest.fixture
def folder(base: Path, smoke: Params, sets: GeneratedSets, tmp_path: Path) -> Path:
    shutil.copytree(base, tmp_path / "base")
    save_prompt(tmp_path / "base", system="", rendering=smoke.prompt.rendering())
    for name in smoke.evaluate.benchmarks:
        write_problems(tmp_path / f"problems/{name}.jsonl", sets.benchmarks[name][:3])
    return tmp_path


def measured(folder: Path, smoke: Params, **fields: str) -> Measured:
    return measure_checkpoint(
        folder / "base",
        completions=folder / "completions.jsonl",
        base=folder / "base",
        problems=folder / "problems",
        model=smoke.model,
        prompt=smoke.prompt,
        reward=smoke.reward,
        evaluate=smoke.evaluate.model_copy(update={"max_new_tokens": 4}),
        seed=0,
        **fields,
    )


def test_another_format_changes_the_prompt_and_nothing_else(
    folder: Path, smoke: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    own = measured(folder, smoke)
    other = measured(folder, smoke, other_format="xml")
    assert list(own.summary) == ["held_out", "harder"] and list(other.summary) == ["held_out"]
    assert own.facts["prompt"]["format"] == "working_out"
    assert other.facts["prompt"]["format"] == "xml"
    assert other.facts["prompt"]["template"] != own.facts["prompt"]["template"]
    rows = [json.loads(line) for line in (folder / "completions.jsonl").open("rb")]
    assert len(rows) == 3 * (1 + smoke.evaluate.num_samples)
    assert list(folder.glob("data/scratch/evaluate/*")) == []
