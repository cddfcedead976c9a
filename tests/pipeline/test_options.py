"""A stage that lacks its input says who writes it, and `--help` is there at once."""

import importlib
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from stages.options import reads, writes

ROOT = Path(__file__).parents[2]


@click.command()
@reads("--problems", "absent.jsonl", "problems")
@writes("--model", "out/model", "the model")
def stage(problems: Path, model: Path) -> None:
    click.echo("ran")


def test_a_missing_input_is_one_line_that_says_what_to_run() -> None:
    result = CliRunner().invoke(stage)
    assert result.exit_code == 2
    assert "absent.jsonl" in result.output
    assert "`dvc repro`" in result.output


def test_the_folder_of_an_output_is_made(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        stage, ["--problems", str(tmp_path), "--model", str(tmp_path / "new/model")]
    )
    assert result.output == "ran\n"
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize("name", ["prepare", "sft", "grpo", "evaluate", "export", "report"])
def test_a_stages_help_names_its_params(name: str) -> None:
    command = importlib.import_module(f"stages.{name}").main
    shown = CliRunner().invoke(command, ["--help"]).output
    assert "Params: " in shown
    assert "--params" in shown


def test_a_wrong_param_stops_a_stage_without_a_traceback(tmp_path: Path) -> None:
    wrong = tmp_path / "params.yaml"
    wrong.write_text("sed: 1\n")
    shown = subprocess.run(
        [sys.executable, "-m", "stages.prepare", "--params", str(wrong)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 1
    assert shown.stderr.startswith("Error: ")
    assert "`seed`" in shown.stderr
    assert "Traceback" not in shown.stderr
