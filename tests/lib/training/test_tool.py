"""A tool's tokens are read by the policy, and trained by nothing."""

import dataclasses
from itertools import chain

import pytest
import torch

from lib.engines.base import encode
from lib.models.pretrained import load_tokenizer
from lib.prompts import prompt_format
from lib.prompts.formats import conversation
from lib.prompts.tools import TOOLS, num_calls
from lib.training.sft import sft_dataset
from tests.lib.engines.contract import TOY
from tests.lib.training.steps import train


@pytest.fixture
def with_tool(built, monkeypatch):
    """Build a trainer whose policy calls the toy tool often."""
    monkeypatch.setitem(TOOLS, "toy", TOY)

    def builder(**changes):
        trainer = built(**{"micro_batch_size": 4, "max_steps": 4, "stop": "", **changes})
        trainer.sampling = dataclasses.replace(trainer.sampling, tool="toy")
        trainer.model.train()
        return trainer

    return builder


def losses_of(trainer):
    """Roll out, and return the batches, each with its loss."""
    batches = trainer.roll_out()
    return [(batch, trainer.compute_loss(trainer.model, {"batch": batch})) for batch in batches]


@pytest.mark.parametrize("changes", [{}, {"beta": 0.5}, {"entropy_coef": 0.1}])
def test_what_the_policy_thinks_of_forced_tokens_changes_nothing(with_tool, changes, logits):
    """Their logits and the sampler's numbers are moved: loss and gradient stay, bit by bit."""
    trainer = with_tool(**changes)
    num_forced = 0
    for batch, loss in losses_of(trainer):
        weight = trainer.model.get_output_embeddings().weight
        (gradient,) = torch.autograd.grad(loss, weight, allow_unused=True, retain_graph=True)
        forced = batch.completion_mask.bool() & ~batch.sampled_mask
        num_forced += int(forced.sum())
        scores = trainer.scorer.score(trainer.model, batch)
        assert not scores.log_probs[forced].any() and not scores.entropy[forced].any()
        batch.sampler_log_probs[forced] = 9.0
        batch.old_log_probs = None
        moved = trainer.compute_loss(trainer.model, {"batch": batch})
        (other,) = torch.autograd.grad(moved, weight, allow_unused=True)
        assert torch.equal(loss, moved)
        assert gradient is None or torch.equal(gradient, other)
    assert num_forced > 10


def test_the_gradient_is_that_of_prompts_that_held_the_results(with_tool):
    """Each sampled token is scored by itself, behind a prompt with everything before it."""
    trainer = with_tool(loss="dapo", mask_truncated=False, prompts_per_step=2)
    weight = trainer.model.get_output_embeddings().weight
    batches = losses_of(trainer)
    (ours,) = torch.autograd.grad(sum(loss for _, loss in batches) / len(batches), weight)
    total, count = 0.0, 0
    for batch, _ in batches:
        for row, ids in enumerate(batch.completion_ids.tolist()):
            prompt = batch.prompt_ids[row][batch.prompt_mask[row].bool()].tolist()
            for at in batch.sampled_mask[row].nonzero()[:, 0].tolist():
                step = trainer.model(torch.tensor([[*prompt, *ids[:at]]])).logits[0, -1]
                total = total - batch.advantages[row] * step.log_softmax(-1)[ids[at]]
                count += 1
    (expected,) = torch.autograd.grad(total / count, weight)
    assert expected.abs().max() > 1e-4
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-4)


def test_the_curve_has_the_rates_of_all_calls(with_tool, monkeypatch):
    trainer = with_tool(max_steps=1)
    monkeypatch.setattr(
        trainer.grading,
        "prompt_format",
        dataclasses.replace(trainer.grading.prompt_format, tool="toy"),
    )
    (point,) = train(trainer)
    texts = [one.completion for one in trainer.rollouts]
    calls = sum(text.count(TOY.close) for text in texts)
    wrong = sum(text.count(f"{TOY.close}=?") for text in texts)
    assert point["calls/mean"] == pytest.approx(calls / len(texts))
    assert point["calls/wrong"] == pytest.approx(wrong / calls)


def test_sft_takes_no_loss_on_results(base, sets):
    """And reads the tokens that generation forces."""
    form, tokenizer = prompt_format("xml", tool="calculator"), load_tokenizer(base)
    problem = next(each for each in sets.grpo if "\n" in each.solution)
    (row,) = sft_dataset([problem], tokenizer, prompt_format=form, system="")
    forced = [
        token
        for token, counts in zip(row["input_ids"], row["completion_mask"], strict=True)
        if not counts
    ][len(encode(tokenizer, [conversation(problem.problem, system="")])[0]) :]
    results = [f"={line.rpartition(' ')[2]}" for line in problem.solution.splitlines()]
    assert forced == list(chain.from_iterable(tokenizer(text)["input_ids"] for text in results))
    assert num_calls(tokenizer.decode(row["input_ids"]), "calculator") == (len(results), 0)
