"""SFT trains on completions only, teaches the end, and never cuts an example silently."""

import pytest
import torch

from lib.artifacts.problems import RESPONSE, Problem
from lib.core.errors import UserError
from lib.engines.policy import load_policy, load_tokenizer, save_policy
from lib.prompts import prompt_format
from lib.training.sft import sft_dataset
from tests.lib.training.steps import plain_sft


@pytest.fixture
def trainer(sets, base, smoke, tmp_path):
    return plain_sft(sets.sft, base, smoke, tmp_path)


def test_the_loss_covers_only_the_completion_and_its_end(trainer, sets, base, smoke):
    tokenizer = load_tokenizer(base)
    own_format = prompt_format(smoke.prompt.format)
    batch = trainer.data_collator([trainer.train_dataset[index] for index in range(4)])
    for problem, token_ids, labels in zip(
        sets.sft, batch["input_ids"], batch["labels"], strict=False
    ):
        learned = labels[labels != -100].tolist()
        target = own_format.target(solution=problem.solution, reference=problem.reference)
        assert tokenizer.decode(learned) == target + tokenizer.eos_token
        assert learned[-1] == tokenizer.eos_token_id
        prompt = token_ids[labels == -100]
        assert problem.problem in tokenizer.decode(prompt)


@pytest.mark.parametrize("ending", ["", "\n\nDone. "])
def test_a_response_is_learnt_to_the_letter(base, ending):
    tokenizer, own = load_tokenizer(base), prompt_format("r1_zero")
    tokenizer.chat_template = own.chat_template
    response = f" It  is\n\\boxed{{4}}. </think> <answer> \\boxed{{4}} </answer>{ending}"
    problem = Problem.create(problem="2 + 2?", reference="4", solution=response, tags=(RESPONSE,))
    (row,) = sft_dataset([problem], tokenizer, prompt_format=own, system="")
    learnt = [
        each for each, ours in zip(row["input_ids"], row["completion_mask"], strict=True) if ours
    ]
    assert learnt == [*tokenizer(response)["input_ids"], tokenizer.eos_token_id]
    other = prompt_format("working_out")
    (row,) = sft_dataset([problem], tokenizer, prompt_format=other, system="")
    assert "</answer>" not in tokenizer.decode(row["input_ids"]).rpartition("Assistant:")[2]


def test_an_example_that_would_be_cut_is_refused(sets, base, smoke, tmp_path):
    short = smoke.model.model_copy(update={"max_seq_length": 20})
    with pytest.raises(UserError, match=r"max_seq_length=20: \d+ of 256 "):
        plain_sft(sets.sft, base, smoke, tmp_path, model=short)


def test_a_step_moves_adapters_only_and_they_are_saved(trainer, base, smoke, tmp_path):
    trainer.args.max_steps = 2
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    trainer.train()
    after = dict(trainer.model.named_parameters())
    moved = {name for name, weight in before.items() if not torch.equal(weight, after[name])}
    assert moved
    assert all("lora_" in name for name in moved)

    save_policy(trainer.model, trainer.processing_class, tmp_path / "sft")
    loaded = load_policy(tmp_path / "sft", base=base, settings=smoke.model)
    for name, weight in loaded.named_parameters():
        assert torch.equal(weight, after[name]), name


def test_packed_rows_hold_every_example_and_learn_the_same(sets, base, smoke, full, tmp_path):
    """In TRL's packed rows no token sees the example before it; the loss equals padded rows'."""
    losses, sizes = [], []
    for packing in (True, False):
        params = smoke.model_copy(update={"sft": smoke.sft.model_copy(update={"packing": packing})})
        built = plain_sft(sets.sft, base, params, tmp_path, model=full)
        rows = built.train_dataset
        batch = built.data_collator([rows[index] for index in range(len(rows))])
        learned = int((batch["labels"] != -100).sum())
        sizes.append((len(rows), learned, sum(map(len, rows["input_ids"]))))
        with torch.no_grad():
            losses.append(float(built.compute_loss(built.model.eval(), batch)))
    (packed_rows, *packed), (padded_rows, *padded) = sizes
    assert packed_rows < padded_rows / 2
    assert packed == padded
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
