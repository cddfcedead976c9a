"""The examples from Python train."""

import runpy
import shutil
from pathlib import Path

import pytest
import wandb

from lib.artifacts import write_jsonl
from lib.artifacts.problems import read_problems, write_problems
from lib.models.hub import dataset_repository
from lib.params import compose_preset, preset_params
from lib.params.data import KnownSource, hub_splits
from lib.training import from_model
from lib.training.from_model import math_training_setup
from lib.training.phase.setup import run_training
from tests.conftest import ROOT, S1
from tests.pipeline.source_rows import row_of

CARD = """---
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
---
"""

EXAMPLES = ROOT / "examples/from_python"


@pytest.fixture
def checkout(base, sets, tmp_path, monkeypatch):
    """Make a working directory with problems, and a tiny model as each checkpoint."""
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(compose_preset("smoke"), encoding="utf-8")
    write_problems(Path("data/problems/grpo.jsonl"), sets.grpo)
    for checkpoint in ("base", "sft", "export"):
        shutil.copytree(base, f"data/models/{checkpoint}")
    (split,) = hub_splits(KnownSource(known="gsm8k_train", limit="all"))
    fetched = dataset_repository(**split.place).folder
    (fetched / "main").mkdir(parents=True)
    (fetched / "README.md").write_text(CARD, encoding="utf-8")
    worked = [problem for problem in sets.sft if problem.solution]
    rows = [row_of("gsm8k", problem) for problem in worked[:16]]
    write_jsonl(fetched / "main/train-0.jsonl", rows)
    return tmp_path


def printed_by(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    runpy.run_path(str(EXAMPLES / name))
    return capsys.readouterr().out.splitlines()


def test_the_example_from_a_models_name_trains(checkout, capsys):
    steps, reward = printed_by("train_model.py", capsys)[-1].split()
    assert int(steps) > 0
    assert float(reward) >= 0
    mine = checkout / "data/scratch/mine"
    assert len((mine / "gsm8k_train.jsonl").read_text().splitlines()) == 16
    assert (mine / "model/adapter_model.safetensors").is_file()
    assert '"name": "data/models/export"' in (mine / "base/base.json").read_text()


@pytest.mark.slow
def test_own_rewards_get_answers_and_an_open_run_the_curve(checkout, monkeypatch):
    references = []

    def own(completions, reference_answer, reference_solution, **_):
        references.extend(zip(reference_answer, reference_solution, strict=True))
        return [float(number % 4) for number in range(len(completions))]

    assert from_model.PRESET == S1
    monkeypatch.setattr(from_model, "PRESET", "smoke")  # that one needs vLLM
    setup = math_training_setup("data/models/export", split="train")
    setup.trainer.reward_funcs[0] = own
    solved = {(problem.reference, problem.solution) for problem in setup.problems}
    settings = wandb.Settings(silent=True, console="off")
    mine = {"seed": "my own"}
    with wandb.init(mode="offline", dir=checkout, settings=settings, config=mine) as run:
        curve = run_training(setup)
        assert run.config["seed"] == "my own"
        assert run.config["grpo.learning_rate"] == preset_params("smoke").grpo.learning_rate
        assert run.summary["train/reward"] == pytest.approx(curve[-1]["reward"])
    assert {*references} <= solved and any(solution for _, solution in references)


def test_own_problems_and_system_prompt_take_the_places_of_gsm8ks(checkout):
    own = checkout / "data/problems/grpo.jsonl"
    setup = math_training_setup(
        "data/models/export",
        problems=own,
        system_prompt="Be brief.",
        params=preset_params("smoke"),
        folder=checkout / "data/scratch/own",
    )
    assert setup.problems == list(read_problems(own))
    assert setup.trainer.problems[0]["prompt"][0] == {"role": "system", "content": "Be brief."}


def test_the_example_from_checkpoints_trains(checkout, capsys):
    (checkout / "data/models/base/system_prompt.txt").write_text("", encoding="utf-8")
    lines = printed_by("train_checkpoint.py", capsys)
    assert lines[0] == "16 ['format', 'answer']"
    assert float(lines[-1]) >= 0
    assert (checkout / "data/scratch/mine/model/adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_a_full_model_takes_the_place_of_an_adapter(checkout):
    mine, params = Path("mine/model"), preset_params("smoke")
    for rank in (8, 0):
        lora = params.model.lora.model_copy(update={"rank": rank})
        setup = math_training_setup(
            "data/models/export",
            params=params.replaced(model={"lora": lora}, grpo={"max_steps": 1}),
            folder=Path("mine"),
            problems=Path("data/problems/grpo.jsonl"),
        )
        run_training(setup, to=mine)
        assert (mine / "adapter_config.json").exists() == (rank > 0)
