import pytest
from tokenizers.processors import TemplateProcessing

from examples.cs336 import encode_alpaca, tokenize_prompt_and_output
from tests.lib.objectives.tiny import BOS, EOS, PAD, tiny_tokenizer


def test_labels_are_shifted_and_the_mask_marks_the_completion(tokenizer):
    batch = tokenize_prompt_and_output(["ab", "c"], ["de", "fghi"], tokenizer)
    a, b, c, d, e, f, g, h, i = range(97, 106)  # the tiny tokenizer's ids are ASCII codes
    assert batch["input_ids"].tolist() == [[a, b, d, e], [c, f, g, h]]
    assert batch["labels"].tolist() == [[b, d, e, PAD], [f, g, h, i]]
    assert batch["response_mask"].tolist() == [[False, True, True, False], [True] * 4]


def test_the_mask_selects_exactly_the_completions_tokens(tokenizer):
    completions = ["x", "", "a longer one", "<eos>"]
    batch = tokenize_prompt_and_output(["p", "pq", "pqr", "p"], completions, tokenizer)
    rows = zip(batch["labels"], batch["response_mask"], strict=True)
    selected = [labels[mask].tolist() for labels, mask in rows]
    assert selected == tokenizer(completions, add_special_tokens=False)["input_ids"]


def test_rows_that_do_not_pair_are_refused(tokenizer):
    with pytest.raises(ValueError, match="2 prompts"):
        tokenize_prompt_and_output(["a", "b"], ["c"], tokenizer)


def test_padding_without_a_pad_token_is_refused():
    without = tiny_tokenizer()
    without.pad_token = None
    assert tokenize_prompt_and_output(["a"], ["b"], without)["labels"].tolist() == [[98]]
    with pytest.raises(ValueError, match="pad token"):
        tokenize_prompt_and_output(["a", "b"], ["c", "de"], without)


def test_an_alpaca_document_ends_with_one_eos(tokenizer):
    ids = encode_alpaca(tokenizer, prompt="Add {1}", response="2")
    text = tokenizer.decode(ids).replace(" ", "")
    assert text.endswith("###Instruction:\nAdd{1}\n\n###Response:\n2<eos>")
    assert ids.count(EOS) == 1


def test_an_eos_that_the_tokenizer_adds_is_not_doubled():
    ends_itself = tiny_tokenizer()
    ends_itself.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", BOS), ("<eos>", EOS)]
    )
    ids = encode_alpaca(ends_itself, prompt="p", response="r")
    assert (ids[0], ids.count(EOS), ids[-1]) == (BOS, 1, EOS)
