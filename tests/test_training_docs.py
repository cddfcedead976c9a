"""The Python of docs/training.md runs as it stands there."""

import re
import shutil
from pathlib import Path

import pytest

from lib.artifacts.problems import write_problems
from lib.params import compose_preset
from lib.problems.generated import GeneratedSets

DOCS = Path(__file__).parents[1] / "docs/training.md"

FROM_A_NAME, FROM_CHECKPOINTS = re.findall(
    r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL
)


@pytest.fixture
def checkout(
    base: Path, sets: GeneratedSets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A working directory with problems, and one tiny model in each place."""
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(compose_preset("smoke"), encoding="utf-8")
    write_problems(Path("data/problems/grpo.jsonl"), sets.grpo)
    for checkpoint in ("base", "sft", "export"):
        shutil.copytree(base, f"data/models/{checkpoint}")
    return tmp_path


def printed_by(example: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    exec(compile(example, str(DOCS), "exec"), {})
    return capsys.readouterr().out.splitlines()


def test_the_example_from_a_models_name_trains(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps, reward = printed_by(FROM_A_NAME, capsys)[-1].split()
    assert int(steps) > 0
    assert float(reward) >= 0
    mine = checkout / "data/scratch/mine"
    assert (mine / "model/adapter_model.safetensors").is_file()
    assert '"name": "data/models/export"' in (mine / "base/base.json").read_text()


def test_the_example_from_checkpoints_trains(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "data/models/base/system_prompt.txt").write_text("", encoding="utf-8")
    said = printed_by(FROM_CHECKPOINTS, capsys)
    assert said[0] == "16 ['format', 'answer']"
    assert float(said[-1]) >= 0
    assert (checkout / "data/scratch/mine/model/adapter_model.safetensors").is_file()
