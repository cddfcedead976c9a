"""SFT trains on completions only, teaches the end, and never cuts an example silently."""

from itertools import compress

import pytest
import torch

from lib.artifacts.problems import RESPONSE, Problem
from lib.core.errors import UserError
from lib.models.pretrained import load_tokenizer
from lib.prompts import prompt_format
from lib.training.sft import sft_dataset
from tests.lib.training.runs import changed
from tests.lib.training.steps import plain_sft


@pytest.fixture
def trainer(sets, base, smoke, tmp_path):
    return plain_sft(sets.sft, base, smoke, tmp_path)


def test_the_loss_covers_only_the_completion_and_its_end(trainer, sets, base, smoke):
    tokenizer = load_tokenizer(base)
    own_format = prompt_format(smoke.prompt.format)
    batch = trainer.data_collator(list(trainer.train_dataset.take(4)))
    rows = zip(sets.sft[:4], batch["input_ids"], batch["labels"], strict=True)
    for problem, token_ids, labels in rows:
        learned = labels[labels != -100].tolist()
        target = own_format.target(solution=problem.solution, reference=problem.reference)
        assert tokenizer.decode(learned) == target + tokenizer.eos_token
        assert learned[-1] == tokenizer.eos_token_id
        assert problem.problem in tokenizer.decode(token_ids[labels == -100])


@pytest.mark.parametrize("ending", ["", "\n\nDone. "])
def test_a_response_is_learnt_to_the_letter(base, ending):
    tokenizer, own = load_tokenizer(base), prompt_format("r1_zero")
    tokenizer.chat_template = own.chat_template
    response = f" It  is\n\\boxed{{4}}. </think> <answer> \\boxed{{4}} </answer>{ending}"
    problem = Problem.create(problem="2 + 2?", reference="4", solution=response, tags=(RESPONSE,))
    (row,) = sft_dataset([problem], tokenizer, prompt_format=own, system="")
    learnt = compress(row["input_ids"], row["completion_mask"])
    assert [*learnt] == [*tokenizer(response)["input_ids"], tokenizer.eos_token_id]
    other = prompt_format("working_out")
    (row,) = sft_dataset([problem], tokenizer, prompt_format=other, system="")
    assert "</answer>" not in tokenizer.decode(row["input_ids"]).rpartition("Assistant:")[2]


def test_an_example_that_would_be_cut_is_refused(sets, base, smoke, tmp_path):
    short = smoke.model.model_copy(update={"max_seq_length": 20})
    with pytest.raises(UserError, match=r"max_seq_length=20: \d+ of 256 "):
        plain_sft(sets.sft, base, smoke, tmp_path, model=short)


def test_packed_rows_hold_every_example_and_learn_the_same(sets, base, smoke, full, tmp_path):
    """In TRL's packed rows no token sees the example before it; the loss equals padded rows'."""

    def measure(packing):
        params = changed(smoke, {"sft": {"packing": packing}})
        built = plain_sft(sets.sft, base, params, tmp_path, model=full)
        rows = built.train_dataset
        batch = built.data_collator(list(rows))
        learned = int((batch["labels"] != -100).sum())
        with torch.no_grad():
            loss = float(built.compute_loss(built.model.eval(), batch))
        return len(rows), (learned, sum(map(len, rows["input_ids"]))), loss

    packed_rows, packed, packed_loss = measure(True)
    padded_rows, padded, padded_loss = measure(False)
    assert packed_rows < padded_rows / 2
    assert packed == padded
    assert packed_loss == pytest.approx(padded_loss, rel=1e-4)


def test_an_adapter_on_the_output_layer_is_trained(sets, base, smoke, tmp_path):
    lora = smoke.model.lora.model_copy(update={"target_modules": ("q_proj", "lm_head")})
    model = smoke.model.model_copy(update={"lora": lora})
    trainer = plain_sft(sets.sft[:8], base, smoke, tmp_path, model=model)
    trainer.args.max_steps = 2
    trainer.train()
    head = trainer.model.get_output_embeddings()
    assert head.lora_B["default"].weight.any()
