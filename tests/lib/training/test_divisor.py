"""What a step's loss is divided by, against one sequence at a time in float64."""

import copy
import dataclasses
import itertools

import pytest
import torch

from tests.lib.objectives.losses import assert_gradients
from tests.lib.training.steps import with_changes

G = 4
ADVANTAGES = [1.5, -0.5, -0.5, -0.5, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, -2.0, 0.0]
"""Of three groups; the second has no signal."""


@pytest.fixture
def trainer(built):
    trainer = built(prompts_per_step=3, group_size=G, micro_batch_size=2, max_steps=1)
    trainer.roll_out()
    assert len({one.num_tokens for one in trainer.rollouts}) > 2
    return trainer


def step_gradient(trainer, rollouts, advantages, *, loss, micro=2, kl=0.0, **changes):
    trainer.grpo = with_changes(trainer.grpo, {"loss": loss, "beta": kl, **changes})
    trainer.objective = dataclasses.replace(trainer.objective, loss=loss, kl_coef=kl)
    trainer.args.per_device_train_batch_size = micro
    trainer.rollouts = rollouts
    trainer.model.zero_grad()
    batches = trainer._arrange(torch.tensor(advantages))
    for batch in batches:
        if kl:
            batch.reference_log_probs = torch.full_like(batch.sampler_log_probs, -1.0)
        (trainer.compute_loss(trainer.model, {"batch": batch}) / len(batches)).backward()
    return {n: w.grad.clone() for n, w in trainer.model.named_parameters()}


def reference_gradient(trainer, *, loss, average, divide_by):
    """On policy every token's loss is -A log π; only the weights of the tokens differ."""
    model = copy.deepcopy(trainer.model).double()
    rows = [
        (index // G, one, advantage)
        for index, (one, advantage) in enumerate(zip(trainer.rollouts, ADVANTAGES, strict=True))
        if divide_by == "all" or index // G != 1
    ]
    tokens = {
        prompt: sum(one.num_tokens for own, one, _ in rows if own == prompt) for prompt, *_ in rows
    }
    total = 0.0
    for prompt, one, advantage in rows:
        ids = torch.tensor([[*one.prompt_ids, *one.token_ids]])
        log_probs = model(input_ids=ids).logits[0, len(one.prompt_ids) - 1 : -1].log_softmax(-1)
        own = log_probs.gather(-1, torch.tensor(one.token_ids)[:, None]).sum()
        divisor = {
            "dr_grpo": len(rows) * trainer.sampling.max_new_tokens,
            "grpo": len(rows) * one.num_tokens,
            "reinforce": len(rows) * one.num_tokens,
        }.get(loss, sum(tokens.values()))
        if average == "prompt":
            divisor = len(tokens) * tokens[prompt]
        total = total - advantage * own / divisor
    total.backward()
    return {n: w.grad.float() for n, w in model.named_parameters()}


STEP_TOKENS = ("dapo", "dppo", "cispo")


def test_each_average_and_divisor_is_its_equation(trainer):
    losses = [(loss, "loss") for loss in (*STEP_TOKENS, "grpo", "dr_grpo", "reinforce")]
    losses += [(loss, "prompt") for loss in STEP_TOKENS]
    rollouts = trainer.rollouts
    for (loss, average), divide_by in itertools.product(losses, ("all", "signal")):
        settings = {"loss": loss, "average": average, "divide_by": divide_by}
        theirs = reference_gradient(trainer, **settings)
        for micro in (2, 3, 12):
            ours = step_gradient(trainer, rollouts, ADVANTAGES, micro=micro, **settings)
            assert_gradients(ours, theirs, within=1e-5)


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_with_signal_a_group_of_equal_rewards_adds_nothing(trainer, kl):
    rollouts, settings = trainer.rollouts, {"kl": kl, "divide_by": "signal"}
    without = [*rollouts[:G], *rollouts[2 * G :]], [*ADVANTAGES[:G], *ADVANTAGES[2 * G :]]
    for loss in (*STEP_TOKENS, "grpo", "dr_grpo", "reinforce"):
        with_group = step_gradient(trainer, rollouts, ADVANTAGES, loss=loss, **settings)
        assert_gradients(
            with_group, step_gradient(trainer, *without, loss=loss, **settings), within=1e-5
        )
    shrunk = step_gradient(trainer, rollouts, ADVANTAGES, loss="grpo", divide_by="all")
    whole = step_gradient(trainer, rollouts, ADVANTAGES, loss="grpo", divide_by="signal")
    assert_gradients({n: w * 1.5 for n, w in shrunk.items()}, whole, within=1e-5)
