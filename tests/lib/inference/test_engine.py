"""vLLM's solutions equal those of transformers."""

import shutil

import pytest

from lib.core.errors import UserError
from lib.inference import GenerationSettings, build_text_generator
from tests.lib.export.conftest import make_adapter
from tests.lib.inference.conftest import OTHERS, QUESTION

GREEDY = GenerationSettings(temperature=0, max_new_tokens=60)


@pytest.fixture(scope="module")
def plain(taught_to_go_on):
    return build_text_generator(taught_to_go_on)


@pytest.fixture
def on_vllm():
    """Open models on vLLM and close them after the test: a process takes one at a time."""
    opened = []

    def open_one(folder):
        opened.append(build_text_generator(folder, engine="vllm"))
        return opened[-1]

    yield open_one
    for generator in opened:
        generator.close()


@pytest.mark.vllm
def test_vllm_s_solutions_are_those_of_transformers(on_vllm, plain, taught_to_go_on):
    generator, questions = on_vllm(taught_to_go_on), [*OTHERS, QUESTION]
    assert generator.generate(questions, GREEDY) == plain.generate(questions, GREEDY)
    assert (
        generator.stream(QUESTION, GREEDY, lambda piece: None)
        == plain.generate([QUESTION], GREEDY)[0]
    )
    with pytest.raises(UserError, match=r"too long: \d+ tokens .* 272 positions"):
        generator.generate(["7 " * 300], GREEDY)


@pytest.mark.vllm
def test_vllm_answers_with_an_adapter_on_its_base(on_vllm, base, smoke, tmp_path):
    shutil.copytree(base, tmp_path / "base")
    make_adapter(base, tmp_path / "sft", smoke)
    expected = build_text_generator(tmp_path / "sft").generate(OTHERS, GREEDY)
    assert on_vllm(tmp_path / "sft").generate(OTHERS, GREEDY) == expected
    untrained = build_text_generator(tmp_path / "base").generate(OTHERS, GREEDY)
    assert expected != untrained
