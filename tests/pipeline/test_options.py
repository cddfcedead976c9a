"""A stage that lacks its input says who writes it."""

from pathlib import Path

import click
from click.testing import CliRunner

from stages.options import reads, writes


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
