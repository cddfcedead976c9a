"""What a model says is what it was taught, however it is asked."""

import shutil
from pathlib import Path

import pytest
import torch

from lib.engines.base import Sampling, encode
from lib.engines.policy import add_adapter, load_policy, load_tokenizer, save_policy
from lib.engines.transformers import TransformersEngine
from lib.errors import UserError
from lib.inference import Decoding, build_text_generator, generate_math_solution
from lib.inference.generator import TextGenerator
from lib.params import Params
from lib.prompts import prompt_format, save_system
from tests.lib.inference.conftest import QUESTION, WORKING, Teach

GREEDY = Decoding(temperature=0, max_new_tokens=80)
OTHERS = ["Tom has 3 apples.", "2 + 2 = ?", "How many pears are there if Ann buys 4 more?"]


@pytest.fixture(scope="module")
def generator(taught: Path) -> TextGenerator:
    return build_text_generator(taught, device="cpu", batch_size=2)


@pytest.fixture(scope="module")
def talker(taught_to_go_on: Path) -> TextGenerator:
    return build_text_generator(taught_to_go_on, device="cpu")


def streamed(generator: TextGenerator, question: str, decoding: Decoding):
    pieces, stream = [], generator.stream(question, decoding)
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as ended:
            return pieces, ended.value


def test_a_known_answer_is_given_with_its_reasoning(generator: TextGenerator) -> None:
    solution = generate_math_solution(QUESTION, generator, temperature=0)
    assert solution.answer == "345"
    assert solution.reasoning == WORKING
    assert solution.finish == "eos"
    assert solution.prompt == f"{QUESTION}\n<start_working_out>"
    assert solution.completion.endswith("<SOLUTION>345</SOLUTION>")


def test_generation_stops_at_the_formats_stop_string_and_keeps_it(talker: TextGenerator) -> None:
    (solution,) = talker.generate([QUESTION], GREEDY)
    assert talker.stop_strings == ("</answer>",)
    assert solution.completion == f" {WORKING}</think> <answer>345</answer>"
    assert (solution.answer, solution.finish) == ("345", "stop")


def test_a_row_that_stopped_early_beside_one_that_goes_on_loses_its_padding(
    talker: TextGenerator,
) -> None:
    alone = talker.generate([QUESTION], GREEDY)[0]
    together = talker.generate([*OTHERS, QUESTION], GREEDY)
    assert together[-1] == alone
    assert any(each.num_tokens > alone.num_tokens for each in together)
    assert (alone.num_tokens, alone.finish) == (
        len(talker.tokenizer(alone.completion, add_special_tokens=False)["input_ids"]),
        "stop",
    )


def test_padding_that_is_eos_is_not_taken_for_an_end(
    talker: TextGenerator, taught_to_go_on: Path
) -> None:
    """As with the many tokenizers that have no padding token of their own."""
    questions, brief = [*OTHERS, QUESTION], Decoding(temperature=0, max_new_tokens=40)
    expected = talker.generate(questions, brief)
    assert {each.finish for each in expected} == {"stop", "length"}
    tokenizer = load_tokenizer(taught_to_go_on)
    tokenizer.pad_token = tokenizer.eos_token
    same = TextGenerator(
        talker.model,
        tokenizer,
        prompt_format=talker.prompt_format,
        stop_strings=talker.stop_strings,
    )
    assert same.generate(questions, brief) == expected


def test_the_limit_on_tokens_is_told_from_an_end(generator: TextGenerator) -> None:
    (solution,) = generator.generate([QUESTION], Decoding(temperature=0, max_new_tokens=5))
    assert (solution.finish, solution.num_tokens) == ("length", 5)


def test_greedy_completions_are_those_that_evaluation_measures(
    generator: TextGenerator, taught: Path
) -> None:
    engine = TransformersEngine(generator.model, load_tokenizer(taught), batch_size=2)
    asked = [[{"role": "user", "content": question}] for question in [QUESTION, *OTHERS]]
    prompts = encode(engine.tokenizer, asked)
    sampling = Sampling(num_completions=1, max_new_tokens=80, temperature=0)
    measured = [completions[0].text for completions in engine.generate(prompts, sampling)]
    solutions = generator.generate([QUESTION, *OTHERS], GREEDY)
    assert [solution.completion for solution in solutions] == measured


@pytest.mark.parametrize("name", ["generator", "talker"])
def test_a_stream_says_what_a_batch_says(name: str, request: pytest.FixtureRequest) -> None:
    asked: TextGenerator = request.getfixturevalue(name)
    for question in [QUESTION, OTHERS[0]]:
        pieces, solution = streamed(asked, question, GREEDY)
        assert solution == asked.generate([question], GREEDY)[0]
        assert "".join(pieces) == solution.completion
    assert len(streamed(asked, QUESTION, GREEDY)[0]) > 3


def test_a_stream_that_nobody_hears_ends(generator: TextGenerator) -> None:
    steps = []
    hook = generator.model.register_forward_hook(lambda *_: steps.append(1))
    stream = generator.stream(OTHERS[0], Decoding(temperature=5.0, max_new_tokens=200, seed=0))
    next(stream)
    stream.close()
    hook.remove()
    assert len(steps) < 150


def test_an_error_while_streaming_reaches_the_listener(
    generator: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(generator.model, "generate", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        list(generator.stream(QUESTION, GREEDY))


def test_draws_repeat_with_a_seed_and_differ_without(generator: TextGenerator) -> None:
    def draw(seed: int | None) -> str:
        decoding = Decoding(temperature=3.0, max_new_tokens=20, seed=seed)
        return generator.generate([OTHERS[0]], decoding)[0].completion

    assert draw(1) == draw(1) != draw(2)
    assert draw(None) != draw(None)


@pytest.mark.parametrize(("rotary", "num_batches"), [(True, 1), (False, 3)])
def test_order_is_kept_and_no_neighbour_changes_a_completion(
    rotary: bool, num_batches: int, talker: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long question leaves less room than the others, for itself alone."""
    if not rotary:
        monkeypatch.setattr(talker.model.config, "rope_parameters", None)
    long = "4 + " * 11 + "4"
    questions = [long, QUESTION, OTHERS[0]]
    alone = [talker.generate([question], GREEDY)[0] for question in questions]
    batches, generate = [], talker.model.generate
    monkeypatch.setattr(
        talker.model, "generate", lambda **given: batches.append(1) or generate(**given)
    )
    assert talker.generate(questions, GREEDY) == alone
    assert len(batches) == num_batches
    assert [each.question for each in alone] == questions
    room = talker.ask(long, GREEDY).room
    assert (alone[0].num_tokens, alone[0].finish) == (room, "length")
    assert room < alone[1].num_tokens


@pytest.mark.parametrize("question", ["", "  \n"])
def test_an_empty_question_is_refused(generator: TextGenerator, question: str) -> None:
    with pytest.raises(UserError, match="question is empty"):
        generate_math_solution(question, generator)


def test_a_question_beyond_the_models_positions_is_refused(generator: TextGenerator) -> None:
    with pytest.raises(UserError, match=r"too long: \d+ tokens .* 256 positions"):
        generate_math_solution("7 " * 300, generator)


def test_impossible_decoding_is_refused() -> None:
    for wrong in ({"max_new_tokens": 0}, {"temperature": -0.1}, {"temperature": float("nan")}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Decoding(**wrong)


def test_the_system_prompt_of_training_is_part_of_the_prompt(teach: Teach) -> None:
    chosen = prompt_format("xml")
    target = chosen.target(solution=WORKING, reference="345") + "<|end|>"
    export = teach(chosen, target, system="Be brief.")
    save_system(export.parent / "base", "Be brief.")
    generator = build_text_generator(export, device="cpu")
    (solution,) = generator.generate([QUESTION], GREEDY)
    assert solution.prompt == f"Be brief.\n{QUESTION}\n"
    assert solution.answer == "345"
    assert solution.reasoning == WORKING


def test_an_adapter_is_asked_together_with_its_base(
    base: Path, smoke: Params, tmp_path: Path
) -> None:
    shutil.copytree(base, tmp_path / "base")
    torch.manual_seed(0)
    model = add_adapter(load_policy(base, base=base, settings=smoke.model), smoke.model.lora)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    save_policy(model, load_tokenizer(base), tmp_path / "sft")
    said = build_text_generator(tmp_path / "sft", device="cpu").generate([QUESTION], GREEDY)
    untrained = build_text_generator(tmp_path / "base", device="cpu").generate([QUESTION], GREEDY)
    assert said[0].prompt == untrained[0].prompt
    assert said[0].completion != untrained[0].completion


def test_a_broken_model_is_one_line(taught: Path, tmp_path: Path) -> None:
    broken = tmp_path / "export"
    shutil.copytree(taught, broken)
    (broken / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(UserError, match=r"export cannot be loaded as a model: [^\n]+$"):
        build_text_generator(broken, device="cpu")


def test_a_model_without_a_chat_template_says_what_is_missing(taught: Path, tmp_path: Path) -> None:
    bare = tmp_path / "export"
    shutil.copytree(taught, bare)
    (bare / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match=r"no chat template.*chat_template\.jinja"):
        build_text_generator(bare, device="cpu")


def test_an_unknown_device_is_one_line(taught: Path) -> None:
    with pytest.raises(UserError, match=r"no device `warp` here \([^\n]+\); try auto or cpu"):
        build_text_generator(taught, device="warp")
