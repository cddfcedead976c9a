"""A step with a teacher: its scores of the policy's own tokens move the policy."""

from types import SimpleNamespace

import pytest
import torch

from lib.core.errors import UserError
from lib.engines.decoding import truncate
from lib.models.pretrained import load_tokenizer
from lib.training.grpo.teacher import load_teacher
from tests.lib.params.changes import accepted
from tests.lib.training.steps import completion_logits, nothing, reward_with, train_steps

ONLY = {"reward.weights": []}
SFT = {"teacher": "sft", "teacher_coef": 1.0}
TRUNCATED = {"temperature": 0.8, "top_p": 0.9}


def step_of(trainer):
    """Take a step's gradients of all weights, by name."""
    trainer.model.train()
    trainer.batches = trainer.roll_out()
    for batch in trainer.batches:
        trainer.compute_loss(trainer.model, {"batch": batch}).backward()
    return {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kl", [{}, {"teacher_kl": "full"}], ids=str)
def test_the_policy_as_its_own_teacher_has_no_gradient(kl, built, base):
    trainer = built(teacher=str(base), teacher_coef=1.0, rollout=TRUNCATED, **kl)
    gradients = step_of(reward_with(trainer, nothing))
    assert gradients
    assert not any(gradient.any() for gradient in gradients.values())


@pytest.mark.parametrize("kl", ["sampled", "full"])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "ended"])
def test_the_gradient_is_that_of_the_teachers_log_probs(masked, kl, built, base):
    """The teacher is moved away from the policy; its logits are computed apart, top-p included."""
    trainer = built(
        teacher=str(base), teacher_coef=0.5, teacher_kl=kl, mask_truncated=masked,
        rollout=TRUNCATED, loss="dapo", micro_batch_size=4,
    )  # fmt: skip
    reward_with(trainer, nothing)
    with torch.no_grad():
        for weight in trainer.teacher.policy.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    gradients = step_of(trainer)
    total, count = 0.0, 0
    for batch in trainer.batches:
        own, cut = table(trainer, trainer.model, batch)
        theirs, _ = table(trainer, trainer.teacher.policy, batch)
        if kl == "full":
            terms = (own.exp() * (own - theirs.detach())).masked_fill(cut, 0).sum(-1)
        else:
            own, theirs = (
                each.gather(-1, batch.completion_ids[..., None])[..., 0] for each in (own, theirs)
            )
            terms = (own - theirs).detach() * own
        total = total + 0.5 * terms[batch.loss_mask].sum()
        count += int(batch.loss_mask.sum())
    assert any(one.truncated for one in trainer.rollouts)
    names = list(gradients)
    weights = dict(trainer.model.named_parameters())
    wanted = torch.autograd.grad(total / count, [weights[name] for name in names])
    largest = max(float(gradient.abs().max()) for gradient in wanted)
    assert largest > 1e-4
    for name, gradient in zip(names, wanted, strict=True):
        torch.testing.assert_close(
            gradients[name] / len(trainer.batches), gradient, atol=1e-4 * largest, rtol=0
        )


def table(trainer, model, batch):
    """Return the log-probs [b, T, V] that are left after temperature and top-p, and what is cut."""
    logits = completion_logits(model, batch) / trainer.sampling.temperature
    left = truncate(logits.detach().flatten(0, 1), trainer.sampling).view(logits.shape)
    norm = logits.where(left > -torch.inf, -torch.inf).logsumexp(-1, keepdim=True)
    return logits - norm, left == -torch.inf


def test_a_teacher_with_other_tokens_is_refused(base, smoke):
    vocabulary = load_tokenizer(base).get_vocab()
    first, *_ = vocabulary
    other = SimpleNamespace(get_vocab=lambda: {**vocabulary, first: 10**6, "<new>": 10**6 + 1})
    with pytest.raises(UserError, match=r"grpo\.teacher: .* 2 tokens, such as .*'<new>'"):
        load_teacher(str(base), other, base=base, settings=smoke.model)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"teacher": "sft"}, "teacher_coef=0"),
        ({**SFT, "teacher": "data/models/grpo"}, "made after GRPO"),
        ({**ONLY}, "reward.weights: .. without grpo.teacher"),
        ({**ONLY, **SFT, "curriculum": "pool"}, "reward.weights: .. with grpo.curriculum: pool"),
        ({**ONLY, **SFT, "dynamic_sampling": 2}, "with grpo.dynamic_sampling"),
        ({**ONLY, **SFT, "reward.extra": ["repetition"]}, "with reward.extra"),
        ({"teacher_coef": 1.0}, "teacher="),
        ({"teacher": "sft", "teacher_coef": 1.0, "divide_by": "signal"}, "divide_by"),
        ({"teacher": "sft", "teacher_coef": 1.0, "trainer": "trl"}, r"grpo\.teacher: sft"),
    ],
)
def test_settings_that_contradict_a_teacher_are_named(changes, key):
    with pytest.raises(UserError, match=key):
        accepted({("" if "." in key else "grpo.") + key: each for key, each in changes.items()})


def test_without_weights_no_training_step_judges(built, base, monkeypatch):
    """The gradients are those with weights of 0."""
    settings = {"teacher": str(base), "teacher_coef": 1.0, "rollout": TRUNCATED, "max_steps": 1}
    judged = train_steps(built(**settings, reward={"weights": (0.0, 0.0)}))
    assert judged.points[0]["answer_accuracy"] >= 0
    monkeypatch.delattr("lib.rewards.rollout.Rollout.verdict")
    monkeypatch.delattr("lib.rewards.rollout.Rollout.parsed")
    alone = train_steps(built(**settings, reward={"weights": ()}))
    assert not {"reward", "answer_accuracy"} & alone.points[0].keys()
    assert "teacher_kl" in alone.points[0]
    torch.testing.assert_close(alone.gradients, judged.gradients, atol=0, rtol=0)
