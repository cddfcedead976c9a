"""What every format promises, and what each one promises by itself."""

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
    chosen = prompt_format(name)
    parsed = chosen.parse(chosen.target(solution=solution, reference=reference))
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


def test_r1_zero_alone_stops_before_eos():
    stops = {name: prompt_format(name).stop_strings for name in FORMATS}
    assert {name: strings for name, strings in stops.items() if strings} == {
        "r1_zero": ("</answer>",)
    }


@pytest.mark.parametrize("tags", [(), ("<w>", "</w>", "<r>", "</r>")])
def test_r1_zero_cut_at_its_stop_string_parses_whole(tags):
    chosen = prompt_format("r1_zero", tags=tags)
    target = chosen.target(solution="2 + 2 = 4", reference="4")
    rambling = f"{target}\nUser: What is 3 + 3?"
    (stop,) = chosen.stop_strings
    cut = rambling[: rambling.index(stop) + len(stop)]
    assert not chosen.parse(rambling).format_ok
    assert chosen.parse(cut) == chosen.parse(target)
    assert chosen.parse(cut).answer == "4"


@pytest.mark.parametrize("name", FORMATS)
def test_a_system_prompt_stands_before_the_question_once(name):
    chosen = prompt_format(name)
    text = prompt_text(chosen, "What is 2 + 2?", system="Be brief.")
    assert text.index("Be brief.") < text.index("What is 2 + 2?")
    assert text.count("Be brief.") == text.count("What is 2 + 2?") == 1


def test_working_out_is_opened_by_the_prompt():
    chosen = prompt_format("working_out")
    assert prompt_text(chosen, "2 + 2?", system="Add.") == "Add.\n2 + 2?\n<start_working_out>"
    target = chosen.target(solution="2 + 2 = 4", reference="4")
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


def test_r1_zero_target_has_the_space_between_its_tags():
    chosen = prompt_format("r1_zero")
    assert chosen.target(solution="Add.", reference="4") == " Add.</think> <answer>4</answer>"
    assert not chosen.parse(" Add.</think>\n<answer>4</answer>").format_ok
    assert chosen.parse(" Add.</think>\n<answer>4</answer>").answer == "4"


def test_alpaca_prompt_is_stanfords():
    assert prompt_text(prompt_format("alpaca"), "What is 2 + 2?") == (
        "Below is an instruction that describes a task. "
        "Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nWhat is 2 + 2?\n\n### Response:"
    )


def test_a_boxed_answer_is_not_boxed_twice():
    chosen = prompt_format("boxed")
    working = "So the sum is $\\boxed{\\frac{1}{2}}$."
    assert chosen.target(solution=working, reference="\\frac{1}{2}") == working
    assert chosen.target(solution=working, reference="0.5").endswith("\n\\boxed{0.5}")


def test_tags_of_choice_replace_the_formats_own():
    chosen = prompt_format("r1_zero", tags=["<a>", "</a>", "<b>", "</b>"])
    assert chosen.marks == ("<a>", "</a>", "<b>", "</b>")
    assert chosen.stop_strings == ("</b>",)
    assert prompt_text(chosen, "2 + 2?").endswith("Assistant: <a>")
    assert chosen.parse(chosen.target(solution="s", reference="4")).answer == "4"


@pytest.mark.parametrize(
    ("name", "tags", "said"),
    [
        ("boxed", ["a", "b", "c", "d"], "has no tags"),
        ("xml", ["<a>", "</a>"], "expected four different tags"),
        ("xml", ["<a>", "<a>", "<b>", "</b>"], "expected four different tags"),
        ("xml", ["<a>", " ", "<b>", "</b>"], "expected four different tags"),
    ],
)
def test_tags_that_cannot_work_are_refused(name, tags, said):
    with pytest.raises(UserError, match=said):
        prompt_format(name, tags=tags)


def test_an_unknown_format_lists_the_known_ones():
    with pytest.raises(UserError, match=r"working_out, .*xml"):
        prompt_format("r2_zero")


def test_instructions_name_the_formats_own_tags():
    chosen = prompt_format("xml", tags=["<w>", "</w>", "<r>", "</r>"])
    assert all(tag in chosen.instructions for tag in chosen.marks)
    assert prompt_format("r1_zero").instructions == ""


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
