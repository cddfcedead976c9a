"""A stage without its input names the command to run; outputs never replace others' files."""

import importlib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from stages.options import reads, writes


@click.command()
@reads("--problems", "absent.jsonl", "problems")
@writes("--model", "out/model", "the model")
@writes("--out", "out.jsonl", "the rows")
def stage(problems: Path, model: Path, out: Path) -> None:
    click.echo("ran")


def test_a_missing_input_is_one_line_that_says_what_to_run():
    result = CliRunner().invoke(stage)
    assert result.exit_code == 2
    assert "absent.jsonl" in result.output
    assert "`dvc repro`" in result.output


def test_a_missing_file_beside_folders_lists_none(tmp_path):
    """Folders are checkpoints: a missing folder lists them, a missing file does not."""
    (tmp_path / "sft").mkdir()
    (tmp_path / "notes").touch()
    for name, there in (("grpo", True), ("rows.jsonl", False)):
        result = CliRunner().invoke(stage, ["--problems", str(tmp_path / name)])
        assert ("(there: sft)" in " ".join(result.output.split())) == there


@pytest.mark.parametrize(
    ("option", "words"),
    [("--out={}", "is a folder"), ("--model={}/file/x/model", "Not a directory")],
)
def test_an_output_that_cannot_be_written_is_named(tmp_path, option, words):
    (tmp_path / "file").touch()
    result = CliRunner().invoke(stage, [f"--problems={tmp_path}", option.format(tmp_path)])
    assert result.exit_code == 2
    assert words in result.output


def test_the_folder_of_an_output_is_made(tmp_path):
    arguments = [f"--problems={tmp_path}", f"--model={tmp_path}/new/model"]
    assert CliRunner().invoke(stage, arguments).output == "ran\n"
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize(
    ("module", "option"),
    [
        ("stages.report", "--figures"),
        ("stages.report", "--plots"),
        ("stages.sft", "--model"),
        ("commands.grade", "--out"),
    ],
)
def test_a_folder_with_files_is_never_replaced(module, option, tmp_path):
    (tmp_path / "a_file_of_theirs").touch()
    command = importlib.import_module(module).main
    result = CliRunner().invoke(command, [option, str(tmp_path)])
    assert result.exit_code == 2 and f"{tmp_path} is a folder" in result.output
    assert (tmp_path / "a_file_of_theirs").exists()
