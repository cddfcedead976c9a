"""The contract of all prompt formats, and the details of each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.artifacts.problems import RESPONSE, Problem
from lib.core.errors import UserError
from lib.prompts import PROMPT_FORMATS, prompt_format
from lib.prompts.targets import render_target
from tests.lib.prompts.rendering import prompt_text

FORMATS = list(PROMPT_FORMATS)
R1_ZERO = prompt_format("r1_zero")
BOXED = "So the sum is $\\boxed{\\frac{1}{2}}$."

WORDS = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="<>\\{}"), max_size=60
).map(str.strip)


@pytest.mark.parametrize("name", FORMATS)
@given(solution=WORDS, reference=WORDS.filter(bool))
def test_parsing_a_rendered_target_gives_back_working_and_answer(name, solution, reference):
    own_format = prompt_format(name)
    parsed = own_format.parse(own_format.target(solution=solution, reference=reference))
    assert parsed.format_ok
    assert parsed.answer == reference
    assert (parsed.reasoning or "") == solution


@pytest.mark.parametrize("name", FORMATS)
@given(pieces=st.lists(st.sampled_from(["<think>", "</answer>", "<answer>", "\\boxed{", "}", "4"])))
def test_no_completion_makes_parsing_raise(name, pieces):
    prompt_format(name).parse("".join(pieces))


@pytest.mark.parametrize("tags", [(), ("<w>", "</w>", "<r>", "</r>")])
def test_r1_zero_cut_at_its_stop_string_parses_whole(tags):
    own_format = prompt_format("r1_zero", tags=tags)
    assert prompt_text(own_format, "2 + 2?").endswith(f"Assistant: {own_format.marks[0]}")
    target = own_format.target(solution="2 + 2 = 4", reference="4")
    rambling = f"{target}\nUser: What is 3 + 3?"
    (stop,) = own_format.stop_strings
    cut = rambling[: rambling.index(stop) + len(stop)]
    assert not own_format.parse(rambling).format_ok
    assert own_format.parse(cut) == own_format.parse(target)
    assert own_format.parse(cut).answer == "4"


@pytest.mark.parametrize("name", FORMATS)
def test_a_system_prompt_stands_before_the_question_once(name):
    own_format = prompt_format(name)
    text = prompt_text(own_format, "What is 2 + 2?", system="Be brief.")
    assert text.index("Be brief.") < text.index("What is 2 + 2?")
    assert text.count("Be brief.") == text.count("What is 2 + 2?") == 1


@pytest.mark.parametrize(
    ("own_format", "rendering", "text"),
    [
        (
            prompt_format("working_out"),
            {"system": "Add."},
            "Add.\nWhat is 2 + 2?\n<start_working_out>",
        ),
        (
            R1_ZERO,  # the paper's, which ends inside <think>
            {},
            "A conversation between User and Assistant. The user asks a question, and the "
            "Assistant solves it. The assistant first thinks about the reasoning process in the "
            "mind and then provides the user with the answer. The reasoning process and answer are "
            "enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., "
            "<think> reasoning process here </think> <answer> answer here </answer>."
            "\nUser: What is 2 + 2?\nAssistant: <think>",
        ),
        (
            R1_ZERO,  # the course's `cs336_alignment/prompts/r1_zero.prompt`, byte for byte
            {"system": R1_ZERO.instructions},
            "A conversation between User and Assistant. The User asks a question, and the "
            "Assistant solves it. The Assistant first thinks about the reasoning process in the "
            "mind and then provides the User with the answer. The reasoning process is enclosed "
            "within <think> </think> and answer is enclosed within <answer> </answer> tags, "
            "respectively, i.e., <think> reasoning process here </think> <answer> answer here "
            "</answer>.\nUser: What is 2 + 2?\nAssistant: <think>",
        ),
        (
            prompt_format("alpaca"),  # Stanford's
            {},
            "Below is an instruction that describes a task. "
            "Write a response that appropriately completes the request.\n\n"
            "### Instruction:\nWhat is 2 + 2?\n\n### Response:",
        ),
        (
            prompt_format("xml", layout="chatml"),
            {"system": "Add."},
            "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        (
            prompt_format("xml", layout="llama3"),
            {"bos_token": "<s>"},
            "<s><|start_header_id|>user<|end_header_id|>\n\nWhat is 2 + 2?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
    ],
    ids=["working_out", "paper", "course", "alpaca", "chatml", "llama3"],
)
def test_a_prompt_is_the_text_that_its_model_was_trained_on(own_format, rendering, text):
    assert prompt_text(own_format, "What is 2 + 2?", **rendering) == text


@pytest.mark.parametrize(
    ("name", "solution", "reference", "target"),
    [
        ("working_out", "Add.", "4", "Add.<end_working_out><SOLUTION>4</SOLUTION>"),
        ("xml", "Add.", "4", "<reasoning>\nAdd.\n</reasoning>\n<answer>\n4\n</answer>\n"),
        ("r1_zero", "Add.", "4", " Add.</think> <answer>4</answer>"),
        ("boxed", BOXED, "\\frac{1}{2}", BOXED),
        ("boxed", BOXED, "0.5", f"{BOXED}\n\\boxed{{0.5}}"),
    ],
)
def test_a_target_marks_working_and_answer_once(name, solution, reference, target):
    assert prompt_format(name).target(solution=solution, reference=reference) == target


@pytest.mark.parametrize("start", ["", "<think>", "\n<think>"])
def test_a_response_repeats_no_tag_that_the_prompt_ends_with(start):
    text = " So it is.</think> <answer>4</answer> \n"
    problem = Problem.create(
        problem="?", reference="4", solution=f"{start}{text}", tags=(RESPONSE,)
    )
    target = render_target(problem, R1_ZERO)
    assert (target.text, target.is_converted) == (text, False)


TRACES = [
    "<think>\nOkay, 2 + 3.\n</think>\n\nThe sum is $\\boxed{5}$.",
    "<think>\nOkay.\n</think>\n<answer>5</answer> User: And 3 + 3?",
    "<think>Okay.</think> <answer>4</answer> No. <answer> 5 </answer>",
    "<reasoning>\n2 + 3 = 5\n</reasoning>\n<answer>\n5\n</answer>",
    "<start_working_out>2 + 3 = 5<end_working_out><SOLUTION>5</SOLUTION>",
    "2 < 3, so x</answer>",
    "<th<think>ink> 5",
    "\\boxed{5} is \\boxed{five}",
    "",
]


@pytest.mark.parametrize("tags", [(), (RESPONSE,)])
@pytest.mark.parametrize("solution", TRACES)
@pytest.mark.parametrize("name", PROMPT_FORMATS)
def test_every_target_parses_in_its_own_format(name, solution, tags):
    own_format = prompt_format(name)
    problem = Problem.create(problem="?", reference="5", solution=solution, tags=tags)
    target = render_target(problem, own_format)
    # Generation stops at the end of an answer: what follows is not seen.
    stops = own_format.stop_strings
    text = target.text[: target.text.index(stops[0]) + len(stops[0])] if stops else target.text
    parsed = own_format.parse(text)
    assert (target.fault, parsed.format_ok) == ("", True)
    assert tags or parsed.answer == "5"
    if own_format.marks and "Okay" in solution:
        assert "Okay" in parsed.reasoning
    if "<answer>" in own_format.marks:
        assert "And 3 + 3" not in text


@pytest.mark.parametrize(
    ("name", "reference"), [("boxed", "x}"), ("xml", "5</answer>"), ("r1_zero", "<think>")]
)
def test_a_reference_that_its_format_cannot_hold_is_a_fault(name, reference):
    problem = Problem.create(problem="?", reference=reference, solution="So.")
    assert f"`{name}`" in render_target(problem, prompt_format(name)).fault


@pytest.mark.parametrize("text", ["<reasoning>\n2 + 3", "2 + 3</reasoning>"])
def test_reasoning_without_one_of_its_tags_is_none(text):
    assert prompt_format("xml").parse(text).reasoning is None


def test_r1_zero_needs_the_space_between_its_tags():
    parsed = R1_ZERO.parse(" Add.</think>\n<answer>4</answer>")
    assert not parsed.format_ok
    assert parsed.answer == "4"


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("boxed", {"tags": ["a", "b", "c", "d"]}, "has no tags"),
        ("xml", {"tags": ["<a>", "</a>"]}, "four different tags"),
        ("xml", {"tags": ["<a>", "<a>", "<b>", "</b>"]}, "four different tags"),
        ("xml", {"tags": ["<a>", " ", "<b>", "</b>"]}, "four different tags"),
        ("xml", {"tags": ["Why:", "End", "So:", "End all"]}, "none inside another"),
        ("alpaca", {"layout": "chatml"}, r"prompt\.layout"),
        ("xml", {"layout": "chatlm"}, r"prompt\.layout"),
        ("r2_zero", {}, r"working_out, .*xml"),
    ],
)
def test_a_format_that_cannot_work_is_refused(name, settings, words):
    with pytest.raises(UserError, match=words):
        prompt_format(name, **settings)


def test_instructions_name_the_formats_own_tags():
    tags = ["<w>", "</w>", "<r>", "</r>"]
    for name in ("xml", "r1_zero", "working_out", "working_out_lines"):
        for own_format in (prompt_format(name), prompt_format(name, tags=tags)):
            assert all(tag in own_format.instructions for tag in own_format.marks)
            assert ("\n" in own_format.instructions) == (name == "xml")
