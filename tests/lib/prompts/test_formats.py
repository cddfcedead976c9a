"""The contract of all prompt formats, and the details of each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.core.errors import UserError
from lib.prompts import PROMPT_FORMATS, prompt_format, prompt_text

FORMATS = list(PROMPT_FORMATS)

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


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("completion", ["", "so \\boxed{}"])
def test_an_empty_completion_is_not_well_formed(name, completion):
    parsed = prompt_format(name).parse(completion)
    assert not parsed.answer
    assert not parsed.format_ok


def test_only_r1_zero_stops_before_eos():
    stops = {name: prompt_format(name).stop_strings for name in FORMATS}
    assert {name: strings for name, strings in stops.items() if strings} == {
        "r1_zero": ("</answer>",)
    }


@pytest.mark.parametrize("tags", [(), ("<w>", "</w>", "<r>", "</r>")])
def test_r1_zero_cut_at_its_stop_string_parses_whole(tags):
    own_format = prompt_format("r1_zero", tags=tags)
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


def test_working_out_is_opened_by_the_prompt():
    own_format = prompt_format("working_out")
    assert prompt_text(own_format, "2 + 2?", system="Add.") == "Add.\n2 + 2?\n<start_working_out>"
    target = own_format.target(solution="2 + 2 = 4", reference="4")
    assert target == "2 + 2 = 4<end_working_out><SOLUTION>4</SOLUTION>"


def test_xml_target_puts_each_tag_on_a_line_of_its_own():
    target = prompt_format("xml").target(solution="2 + 2 = 4", reference="4")
    assert target == "<reasoning>\n2 + 2 = 4\n</reasoning>\n<answer>\n4\n</answer>\n"


def test_r1_zero_prompt_is_the_papers_and_ends_inside_think():
    text = prompt_text(prompt_format("r1_zero"), "What is 2 + 2?")
    assert text == (
        "A conversation between User and Assistant. The user asks a question, and the Assistant "
        "solves it. The assistant first thinks about the reasoning process in the mind and then "
        "provides the user with the answer. The reasoning process and answer are enclosed within "
        "<think> </think> and <answer> </answer> tags, respectively, i.e., <think> reasoning "
        "process here </think> <answer> answer here </answer>."
        "\nUser: What is 2 + 2?\nAssistant: <think>"
    )


def test_r1_zeros_own_system_prompt_is_the_courses_file():
    """The file is `cs336_alignment/prompts/r1_zero.prompt`, byte for byte."""
    own_format = prompt_format("r1_zero")
    text = prompt_text(own_format, "What is 2 + 2?", system=own_format.instructions)
    assert text == (
        "A conversation between User and Assistant. The User asks a question, and the Assistant "
        "solves it. The Assistant first thinks about the reasoning process in the mind and then "
        "provides the User with the answer. The reasoning process is enclosed within <think> "
        "</think> and answer is enclosed within <answer> </answer> tags, respectively, i.e., "
        "<think> reasoning process here </think> <answer> answer here </answer>.\n"
        "User: What is 2 + 2?\nAssistant: <think>"
    )


def test_r1_zero_target_has_the_space_between_its_tags():
    own_format = prompt_format("r1_zero")
    assert own_format.target(solution="Add.", reference="4") == " Add.</think> <answer>4</answer>"
    assert not own_format.parse(" Add.</think>\n<answer>4</answer>").format_ok
    assert own_format.parse(" Add.</think>\n<answer>4</answer>").answer == "4"


def test_alpaca_prompt_is_stanfords():
    assert prompt_text(prompt_format("alpaca"), "What is 2 + 2?") == (
        "Below is an instruction that describes a task. "
        "Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nWhat is 2 + 2?\n\n### Response:"
    )


def test_a_boxed_answer_is_not_boxed_twice():
    own_format = prompt_format("boxed")
    working = "So the sum is $\\boxed{\\frac{1}{2}}$."
    assert own_format.target(solution=working, reference="\\frac{1}{2}") == working
    assert own_format.target(solution=working, reference="0.5").endswith("\n\\boxed{0.5}")


def test_tags_of_choice_replace_the_formats_own():
    own_format = prompt_format("r1_zero", tags=["<a>", "</a>", "<b>", "</b>"])
    assert own_format.marks == ("<a>", "</a>", "<b>", "</b>")
    assert own_format.stop_strings == ("</b>",)
    assert prompt_text(own_format, "2 + 2?").endswith("Assistant: <a>")
    assert own_format.parse(own_format.target(solution="s", reference="4")).answer == "4"


@pytest.mark.parametrize(
    ("name", "tags", "words"),
    [
        ("boxed", ["a", "b", "c", "d"], "has no tags"),
        ("xml", ["<a>", "</a>"], "expected four different tags"),
        ("xml", ["<a>", "<a>", "<b>", "</b>"], "expected four different tags"),
        ("xml", ["<a>", " ", "<b>", "</b>"], "expected four different tags"),
    ],
)
def test_tags_that_cannot_work_are_refused(name, tags, words):
    with pytest.raises(UserError, match=words):
        prompt_format(name, tags=tags)


def test_an_unknown_format_lists_the_known_ones():
    with pytest.raises(UserError, match=r"working_out, .*xml"):
        prompt_format("r2_zero")


def test_instructions_name_the_formats_own_tags():
    own_format = prompt_format("xml", tags=["<w>", "</w>", "<r>", "</r>"])
    assert own_format.instructions == (
        "Work through the problem between <w> and </w>. Then give the answer alone between <r> and "
        "</r>. Each tag is on a line of its own:\n<w>\n...\n</w>\n<r>\n...\n</r>"
    )
    own = prompt_format("r1_zero", tags=["<w>", "</w>", "<r>", "</r>"])
    assert "i.e., <w> reasoning process here </w> <r> answer here </r>." in own.instructions
    for name in ("working_out", "working_out_lines"):
        own_format = prompt_format(name)
        assert all(tag in own_format.instructions for tag in own_format.marks)
        assert "\n" not in own_format.instructions


def test_a_layout_wraps_the_turns_as_the_model_family_does():
    assert prompt_text(prompt_format("xml", layout="chatml"), "2 + 2?", system="Add.") == (
        "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert prompt_text(prompt_format("xml", layout="llama3"), "2 + 2?", bos_token="<s>") == (
        "<s><|start_header_id|>user<|end_header_id|>\n\n2 + 2?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


@pytest.mark.parametrize(("name", "layout"), [("alpaca", "chatml"), ("xml", "chatlm")])
def test_a_layout_that_does_not_fit_is_refused(name, layout):
    with pytest.raises(UserError, match=r"prompt\.layout"):
        prompt_format(name, layout=layout)
