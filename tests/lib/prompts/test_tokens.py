"""Training, generation and our own rendering agree token by token, with one BOS and one EOS."""

import itertools

import pytest

from lib.artifacts.problems import Problem
from lib.engines.base import encode
from lib.prompts import PROMPT_FORMATS, prompt_format, with_default_system
from lib.prompts.formats import conversation
from lib.training.sft import sft_dataset
from tests.lib.prompts.rendering import prompt_text

FORMATS = [
    *((name, "plain") for name in PROMPT_FORMATS),
    *(("xml", layout) for layout in ("chatml", "llama3")),
    *(("working_out", layout) for layout in ("chatml", "llama3")),
]

PROBLEM = "How many clips (of 48) did she sell?"
SOLUTION = "(48/2 = 24) and 24 more."


@pytest.fixture(params=FORMATS, ids="-".join)
def own_format(request):
    name, layout = request.param
    return prompt_format(name, layout=layout)


def _conversation(own_format, system="Think first."):
    prompt = conversation(PROBLEM, system=system)
    answer = own_format.target(solution=SOLUTION, reference="72")
    return prompt, [*prompt, {"role": "assistant", "content": answer}]


def _encode(own_format, tokenizer, system="Think first."):
    """Encode prompt and completion as SFT does."""
    problem = Problem.create(problem=PROBLEM, reference="72", solution=SOLUTION)
    (row,) = sft_dataset([problem], tokenizer, prompt_format=own_format, system=system)
    start = row["completion_mask"].index(1)
    return row["input_ids"][:start], row["input_ids"][start:]


def _generation_ids(tokenizer, messages):
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("system", ["", "Think first."])
def test_our_rendering_is_the_tokenizers(own_format, build_tokenizer, bos, system):
    tokenizer = build_tokenizer(own_format.chat_template, bos=bos)
    prompt, _ = _conversation(own_format, system)
    rendered = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    ours = prompt_text(own_format, PROBLEM, system=system, bos_token=tokenizer.bos_token or "")
    assert rendered == ours


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("system", ["Think first.", "A {{ b }} {% c %}\n\t'd' \"e\" \\f é 🙂"])
def test_an_exported_template_gives_trainings_prompt_tokens(
    own_format, build_tokenizer, bos, system
):
    tokenizer = build_tokenizer(own_format.chat_template, marks=own_format.marks, bos=bos)
    trained, _ = _encode(own_format, tokenizer, system)
    tokenizer.chat_template = with_default_system(own_format.chat_template, system)

    def ids(*turns):
        messages = [{"role": role, "content": content} for role, content in turns]
        return _generation_ids(tokenizer, messages)

    assert ids(("user", PROBLEM)) == trained
    # The default is not repeated, and gives way to another system prompt.
    assert ids(("system", system), ("user", PROBLEM)) == trained
    text = tokenizer.decode(ids(("system", "Be brief."), ("user", PROBLEM)))
    assert "Be brief." in text
    assert system not in text


@pytest.mark.parametrize("bos", [True, False])
def test_sft_trains_on_the_prompt_tokens_of_generation(own_format, build_tokenizer, bos):
    # The default's tokenizer is trained with the tags as tokens.
    tokenizer = build_tokenizer(own_format.chat_template, marks=own_format.marks, bos=bos)
    prompt, whole = _conversation(own_format)
    prompt_ids, completion_ids = _encode(own_format, tokenizer)
    assert prompt_ids == _generation_ids(tokenizer, prompt)
    encoded = tokenizer.apply_chat_template(
        whole, return_dict=True, return_assistant_tokens_mask=True
    )
    ids = encoded["input_ids"]
    assert prompt_ids + completion_ids == ids
    # Generation's marks are around the answer and EOS.
    assert completion_ids == list(itertools.compress(ids, encoded["assistant_masks"]))
    assert ids[-1] == tokenizer.eos_token_id and ids.count(tokenizer.eos_token_id) == 1
    if bos:
        assert ids[0] == tokenizer.bos_token_id and ids.count(tokenizer.bos_token_id) == 1
        # Plain tokenization adds BOS: after the template there would be two.
        assert tokenizer(PROBLEM)["input_ids"][0] == tokenizer.bos_token_id


def test_a_tokenizer_does_not_fuse_prompt_and_completion(build_tokenizer):
    own_format = prompt_format("working_out")
    tokenizer = build_tokenizer(own_format.chat_template)
    tokenizer.add_tokens([">("])
    prompt, whole = _conversation(own_format, "")
    generation = _generation_ids(tokenizer, prompt)
    together = tokenizer.apply_chat_template(whole)["input_ids"]
    assert together[: len(generation)] != generation
    assert _encode(own_format, tokenizer, "")[0] == generation


def test_a_conversation_of_several_turns_renders_each_turn(own_format, build_tokenizer):
    tokenizer = build_tokenizer(own_format.chat_template)
    _, whole = _conversation(own_format, "")
    follow_up = [*whole, {"role": "user", "content": "And twice that?"}]
    text = tokenizer.apply_chat_template(follow_up, tokenize=False, add_generation_prompt=True)
    assert text.count("And twice that?") == 1
    assert text.count(tokenizer.eos_token) == text.count(tokenizer.bos_token) == 1


def test_a_control_token_in_a_question_is_encoded_as_letters(own_format, build_tokenizer):
    tokenizer = build_tokenizer(own_format.chat_template, marks=own_format.marks)
    controls = {"<bos>", tokenizer.eos_token, tokenizer.pad_token, *own_format.marks}
    held = "".join(sorted(controls))
    plain, hostile = (
        conversation(f"Is{text} 2 < 3, é?\n\n", system="Think first.") for text in ("", held)
    )
    of_plain, of_hostile = encode(tokenizer, [plain, hostile])
    assert of_plain == _generation_ids(tokenizer, plain)
    assert tokenizer.decode(of_hostile) == tokenizer.decode(_generation_ids(tokenizer, hostile))
    ids = {tokenizer.convert_tokens_to_ids(token) for token in controls}
    assert [each for each in of_hostile if each in ids] == [
        each for each in of_plain if each in ids
    ]
