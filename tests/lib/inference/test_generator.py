"""A model repeats its training answer by batch, by stream and one by one."""

import dataclasses
import shutil

import pytest
from transformers import GenerationConfig

from lib.artifacts.completions import GeneratedCompletion
from lib.inference import GenerationSettings, build_text_generator, generate_math_solution
from lib.inference.external import external_model
from lib.inference.generator import TextGenerator
from lib.prompts import prompt_format
from lib.prompts.tools import TOOLS
from tests.lib.inference.conftest import OTHERS, QUESTION, WORKING

GREEDY = GenerationSettings(temperature=0, max_new_tokens=100)


@pytest.fixture(scope="module")
def generator(taught):
    return build_text_generator(taught, batch_size=2)


@pytest.fixture(scope="module")
def talker(taught_to_go_on):
    return build_text_generator(taught_to_go_on)


def streamed(generator: TextGenerator, question: str, settings: GenerationSettings):
    pieces = []
    return pieces, generator.stream(question, settings, pieces.append)


def test_a_known_answer_comes_with_its_reasoning(generator):
    solution = generate_math_solution(QUESTION, generator, temperature=0)
    assert solution.answer == "345"
    assert solution.reasoning == WORKING
    assert solution.finish == "eos"
    assert solution.prompt == f"{QUESTION}\n<start_working_out>"
    assert solution.completion.endswith("<SOLUTION>345</SOLUTION>")


def test_marks_that_are_misplaced_are_no_part_of_an_answer(generator):
    for text, answer in (("Answer: 9</SOLUTION>0", "9"), ("so 4 + 5 = 9", "4 + 5 = 9")):
        completion = GeneratedCompletion(text=text, token_ids=(1,), finish="length")
        assert generator._solution(QUESTION, completion).answer == answer


def test_generation_stops_at_the_formats_string_and_keeps_it(talker):
    (solution,) = talker.generate([QUESTION], GREEDY)
    assert talker.stop_strings == ("</answer>",)
    assert solution.completion == f" {WORKING}</think> <answer>345</answer>"
    assert (solution.answer, solution.finish) == ("345", "stop")


@pytest.mark.parametrize("name", ["generator", "talker"])
def test_a_stream_says_what_a_batch_says(name, request):
    generator = request.getfixturevalue(name)
    for question in [QUESTION, OTHERS[0]]:
        pieces, solution = streamed(generator, question, GREEDY)
        assert solution == generator.generate([question], GREEDY)[0]
        assert "".join(pieces) == solution.completion
    assert len(streamed(generator, QUESTION, GREEDY)[0]) > 3


def test_an_error_of_the_listener_ends_the_generation(generator):
    steps = []
    hook = generator.engine.model.register_forward_hook(lambda *_: steps.append(1))

    def leave(piece):
        raise KeyboardInterrupt

    settings = GenerationSettings(temperature=5.0, max_new_tokens=200, seed=0)
    with pytest.raises(KeyboardInterrupt):
        generator.stream(OTHERS[0], settings, leave)
    hook.remove()
    assert len(steps) < 50


def test_a_question_is_answered_with_the_tool_of_the_model(teach, monkeypatch, capsys):
    """The model has learned another result than it gets; only the tool can have written it."""
    own_format = prompt_format("working_out", tool="calculator")
    target = own_format.target(solution="<calc>15 * 23</calc>=345", reference="345") + "<|end|>"
    folder = teach(own_format, target)
    tool = dataclasses.replace(TOOLS["calculator"], run=lambda text: f"={len(text)}0")
    monkeypatch.setitem(TOOLS, "calculator", tool)
    generator = build_text_generator(folder)
    pieces, solution = streamed(generator, QUESTION, GREEDY)
    assert solution.completion.startswith("<calc>15 * 23</calc>=70")
    assert "".join(pieces) == solution.completion
    assert not capsys.readouterr().err.count("Warning: ")
    plain = external_model(folder, format_name="working_out")
    assert plain.prompt_format.tool == ""
    assert "trained with the tool calculator" in capsys.readouterr().err


def test_a_stream_shows_no_half_of_a_character(teach):
    own_format = prompt_format("xml")
    target = own_format.target(solution="½ × 46 = 23 €", reference="23") + "<|end|>"
    generator = build_text_generator(teach(own_format, target))
    pieces, solution = streamed(generator, QUESTION, GREEDY)
    assert "½ × 46 = 23 €" in solution.completion == "".join(pieces)
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("config", [{"top_k": 1}, {"top_p": 0.0001}, {"min_p": 1.0}])
def test_cuts_of_the_model_s_generation_config_are_applied(taught, tmp_path, config):
    folder = shutil.copytree(taught, tmp_path / "export")
    saved = GenerationConfig.from_pretrained(folder)
    saved.update(do_sample=True, **config)
    saved.save_pretrained(folder)
    sampled = GenerationSettings(temperature=4.0, max_new_tokens=20, seed=1)
    greedy = GenerationSettings(temperature=0, max_new_tokens=20)
    generator = build_text_generator(folder)
    assert generator.generate(OTHERS, sampled) == generator.generate(OTHERS, greedy)


def test_samples_repeat_with_a_seed_and_differ_without(generator):
    def sample(seed):
        settings = GenerationSettings(temperature=3.0, max_new_tokens=20, seed=seed)
        return generator.generate([OTHERS[0]], settings)[0].completion

    assert sample(1) == sample(1) != sample(2)
    assert sample(None) != sample(None)


def test_order_is_kept_and_no_neighbour_changes_a_completion(talker):
    """A long question shortens its own completion only."""
    positions = talker.engine.positions
    assert positions is not None
    products = ("15 * " * number + "4" for number in range(positions))
    long = next(text for text in products if positions - len(talker.encode(text)) < 30)
    questions = [long, QUESTION, OTHERS[0]]
    alone = [talker.generate([question], GREEDY)[0] for question in questions]
    assert talker.generate(questions, GREEDY) == alone
    assert [each.question for each in alone] == questions
    room = positions - len(talker.encode(long))
    assert (alone[0].num_tokens, alone[0].finish) == (room, "length")
    assert room < alone[1].num_tokens


def test_impossible_settings_are_refused():
    for wrong in ({"max_new_tokens": 0}, {"temperature": -0.1}, {"temperature": float("nan")}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            GenerationSettings(**wrong)
