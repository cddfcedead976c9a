"""The Python of docs/training.md runs as it stands there."""

import re
import shutil
from pathlib import Path

import pytest

from lib.artifacts.problems import write_problems
from lib.params import compose_preset
from lib.problems.generated import GeneratedSets

DOCS = Path(__file__).parents[1] / "docs/training.md"


def test_the_python_example_trains(
    base: Path,
    sets: GeneratedSets,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(compose_preset("smoke"), encoding="utf-8")
    write_problems(Path("data/problems/grpo.jsonl"), sets.grpo)
    for checkpoint in ("base", "sft"):
        shutil.copytree(base, f"data/models/{checkpoint}")
    Path("data/models/base/system_prompt.txt").write_text("", encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(example, str(DOCS), "exec"), {})
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "16 ['format', 'answer']"
    assert float(said[-1]) >= 0
    assert Path("data/scratch/mine/model/adapter_model.safetensors").is_file()
