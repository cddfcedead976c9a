from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lib.core.errors import UserError
from lib.models.tiny import EOS_TOKEN, PAD_TOKEN, build_model, train_tokenizer
from lib.params import preset_params
from lib.problems.generated import generate_problems
from lib.prompts import PROMPT_FORMATS, PromptFormat, prompt_format
from lib.prompts.formats import conversation
from tests.lib.models.hub_models import same_weights

FORMAT = prompt_format("working_out")
SMOKE = preset_params("smoke")
GENERATOR = SMOKE.prepare.synthetic
PROBLEMS = list(generate_problems(split="sft", seed=0, count=200, settings=GENERATOR))


def built(seed: int = 0):
    shape = SMOKE.model.tiny.model_copy(update={"initializer_range": 0.06})
    return build_model(tokenizer(), shape=shape, seed=seed, max_positions=128)


def tokenizer(prompt: PromptFormat = FORMAT, vocab_size: int = 400):
    texts = [text for problem in PROBLEMS for text in (problem.problem, problem.solution)]
    return train_tokenizer(
        texts, vocab_size=vocab_size, marks=prompt.marks, chat_template=prompt.chat_template
    )


def written_checkpoint(directory: Path) -> dict[str, bytes]:
    built().save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_digit_is_one_token_in_sentences_and_equations():
    pieces = tokenizer().tokenize("Ines has 47 + 3 = 50\n50 / 5 = 10")
    texts = [token.replace("Ġ", " ").replace("Ċ", "\n") for token in pieces]
    equations = [*"47", " + ", "3", " = ", *"50", "\n", *"50", " / ", "5", " = ", *"10"]
    assert texts == ["Ines", " has ", *equations]


@pytest.mark.parametrize("name", PROMPT_FORMATS)
def test_each_mark_is_one_token_that_decoding_keeps(name):
    prompt = PROMPT_FORMATS[name]
    made = tokenizer(prompt)
    target = prompt.target(solution="3 + 4 = 7", reference="7")
    ids = made(target)["input_ids"]
    for mark in prompt.marks:
        assert made.tokenize(mark) == [mark]
        assert ids.count(made.convert_tokens_to_ids(mark)) == target.count(mark)
    assert made.decode(ids, skip_special_tokens=True) == target


def test_eos_is_not_padding_and_nothing_comes_before_a_text():
    made = tokenizer()
    assert (made.pad_token, made.eos_token, made.bos_token) == (PAD_TOKEN, EOS_TOKEN, None)
    assert made.pad_token_id != made.eos_token_id
    assert made("7")["input_ids"] == [made.convert_tokens_to_ids("7")]


def test_a_conversation_is_the_rendered_prompt_to_one_eos():
    made = tokenizer()
    prompt = conversation("What is 3 + 4?", system="")
    answer = {"role": "assistant", "content": FORMAT.target(solution="", reference="7")}
    whole = made.apply_chat_template([*prompt, answer], return_dict=True)["input_ids"]
    start = made.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)
    assert whole[: len(start["input_ids"])] == start["input_ids"]
    assert whole.count(made.eos_token_id) == 1
    assert whole[-1] == made.eos_token_id
    text = made.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    assert made(text)["input_ids"] == start["input_ids"]


def test_the_vocabulary_has_its_size_and_too_small_is_refused():
    assert len(tokenizer(vocab_size=400)) == 400
    with pytest.raises(UserError, match="got 200"):
        tokenizer(vocab_size=200)


def test_a_loaded_checkpoint_is_the_one_that_was_saved(tmp_path):
    written_checkpoint(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    made = AutoTokenizer.from_pretrained(tmp_path)
    assert same_weights(built(), loaded)
    text = FORMAT.target(solution="40 - 7 = 33", reference="33")
    assert made(text)["input_ids"] == tokenizer()(text)["input_ids"]
    assert made.chat_template == FORMAT.chat_template
    assert made.padding_side == "left"
    config = loaded.config
    assert loaded.generation_config.eos_token_id == made.eos_token_id == config.eos_token_id
    assert made.pad_token_id == config.pad_token_id
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight


def test_weights_depend_on_the_seed_only(monkeypatch):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    gpus = Mock()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", gpus)
    one, again, other = map(built, (0, 0, 1))
    assert torch.equal(torch.rand(3), expected)
    assert not gpus.called
    assert same_weights(one, again)
    embedding = one.get_input_embeddings().weight
    assert not torch.equal(embedding, other.get_input_embeddings().weight)
    assert embedding.std().item() == pytest.approx(0.06, rel=0.05)
    assert embedding.dtype == torch.float32
