"""Every knob of the objective acts in a real training step on the smoke model."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lib.engines.policy import add_adapter, load_policy, load_tokenizer, save_policy
from lib.engines.tiny import write_base
from lib.engines.transformers import TransformersEngine
from lib.errors import UserError
from lib.objectives import (
    group_advantages,
    policy_loss,
)
from lib.params import Params
from lib.params.model import Model
from lib.params.training import Grpo
from lib.problems.generated import GeneratedSets
from lib.prompts import prompt_format
from lib.prompts.tagged import TaggedFormat
from lib.trainers.policy_gradient import PolicyGradientTrainer
from lib.trainers.tracking import curve_points
from tests.lib.trainers.steps import Steps, build, letters, reward_with

Builder = Callable[..., PolicyGradientTrainer]
GAP = "sampling/sampling_logp_difference"


@pytest.fixture
def built(sets: GeneratedSets, base: Path, smoke: Params, full: Model, tmp_path: Path) -> Builder:
    def builder(**changes: Any) -> PolicyGradientTrainer:
        trainer = build(sets.grpo, base, smoke, tmp_path, **{"model": full, **changes})
        return trainer if "reward" in changes else reward_with(trainer, letters)

    return builder


def log_probs(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """[B, T] of the completions' tokens."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    seen = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    length = batch["completion_ids"].shape[1]
    logits = model(input_ids=ids, attention_mask=seen).logits[:, -length - 1 : -1]
    return logits.log_softmax(-1).gather(-1, batch["completion_ids"].unsqueeze(-1)).squeeze(-1)


OBJECTIVES: dict[str, dict[str, Any]] = {
    "grpo": {"loss": "grpo"},
    "bnpo": {"loss": "bnpo"},
    "dr_grpo": {"loss": "dr_grpo"},
    "dapo": {"loss": "dapo"},
    "clip higher": {"loss": "grpo", "epsilon": 0.01, "epsilon_high": 0.5},
    # Wide: a step this large moves whole sequences beyond the usual bounds, with no gradient left.
    "gspo": {"loss": "grpo", "importance_level": "sequence", "epsilon": 0.9, "epsilon_high": 9.0},
    "kl": {"loss": "grpo", "beta": 0.5},
    "kl of GRPO": {"loss": "grpo", "beta": 0.5, "kl_weighted": False},
    "mask": {"loss": "grpo", "mask_truncated": True},
    "reinforce": {"loss": "reinforce", "num_iterations": 1},
}


def gradients(
    trainer: PolicyGradientTrainer, batch: dict[str, Tensor], mask: Tensor, **knobs: Any
) -> dict[str, Tensor]:
    """Of our own objective, at the trainer's weights."""
    trainer.model.zero_grad()
    policy_loss(log_probs(trainer.model, batch), batch["advantages"], mask, **knobs).loss.backward()
    return {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_of_a_step_is_the_objectives_and_no_others(built: Builder, name: str) -> None:
    """The second step on a batch, whose ratio is not 1; `reinforce` has one step on each."""
    common = {"max_steps": 2, "num_iterations": 2, "learning_rate": 0.02, "warmup_ratio": 0.0}
    trainer = built(**{**common, **OBJECTIVES[name]})
    initial = copy.deepcopy(trainer.model)
    steps = Steps(trainer)
    trainer.train()

    batch, theirs = steps.batches[1], steps.gradients[1]
    trainer.model.load_state_dict(steps.weights[1], strict=False)
    seen = batch["completion_mask"]
    old = batch.get("old_per_token_logps")
    plain = {"loss_type": "reinforce" if name == "grpo" else "grpo", "old_log_probs": old}
    given = OBJECTIVES[name]
    knobs: dict[str, Any] = {
        "loss_type": given["loss"],
        "old_log_probs": old,
        "clip_low": given.get("epsilon", 0.2),
        "clip_high": given.get("epsilon_high"),
        "ratio_level": given.get("importance_level", "token"),
        "reference_log_probs": log_probs(initial, batch).detach(),
        "kl_coef": given.get("beta", 0.0),
        "kl_weighted": given.get("kl_weighted", True),
        "max_completion_length": trainer.args.max_completion_length,
    }
    ours = gradients(trainer, batch, seen * batch.get("tool_mask", 1), **knobs)
    others = gradients(trainer, batch, seen, **plain)
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    assert largest > 1e-5
    torch.testing.assert_close(ours, theirs, atol=1e-4 * largest, rtol=1e-3)
    if name != "reinforce":
        differences = [(others[key] - theirs[key]).abs().max() for key in theirs]
        assert max(differences) > 1e-2 * largest


def test_reinforce_reads_no_older_policy(built: Builder) -> None:
    trainer = built(loss="reinforce", max_steps=1)
    steps = Steps(trainer)
    trainer.train()
    batch = steps.batches[0]
    mask = batch["completion_mask"]
    ours = gradients(trainer, batch, mask, loss_type="reinforce")
    older = {**batch, "old_per_token_logps": log_probs(trainer.model, batch).detach() - 1}
    trainer.model.zero_grad()
    trainer._compute_loss(trainer.model, older).backward()
    theirs = {name: weight.grad for name, weight in trainer.model.named_parameters()}
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    torch.testing.assert_close(ours, theirs, atol=1e-4 * largest, rtol=1e-3)


class Stale(TransformersEngine):
    """An engine that keeps a copy of the policy, and that nobody keeps in step with it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model = copy.deepcopy(self.model)

    def sync(self, policy: Any) -> None:
        pass


@pytest.mark.parametrize("live", [True, False])
def test_a_sampler_left_on_old_weights_ends_the_run(built: Builder, live: bool) -> None:
    """Measured in the loss for an engine on the policy's weights, by TRL for one with its own."""
    trainer = built(max_steps=20, learning_rate=0.02, warmup_ratio=0.0)
    engine = Stale(trainer.model, trainer.processing_class, batch_size=16)
    trainer.roll_out_with(engine, trainer.rollouts.sampling, live=live)
    with pytest.raises(UserError, match=r"step [2-9]: .* more than rollout.max_logp_difference"):
        trainer.train()
    assert max(trainer._metrics["train"][f"{GAP}/mean"]) > 0.05


@pytest.mark.parametrize("live", [True, False])
def test_the_samplers_gap_is_logged_in_every_step_and_is_rounding(
    built: Builder, live: bool
) -> None:
    trainer = built(learning_rate=0.02, warmup_ratio=0.0)
    trainer.roll_out_with(trainer.rollouts.engine, trainer.rollouts.sampling, live=live)
    trainer.train()
    points = curve_points(trainer.state)
    assert len(points) == 3
    assert all(0 < point[f"{GAP}/mean"] < 1e-5 for point in points)
    assert all(point[f"{GAP}/mean"] <= point[f"{GAP}/max"] < 1e-4 for point in points)


@pytest.mark.parametrize("advantage", ["none", "mean", "group", "batch", "rloo"])
def test_advantages_are_those_that_params_name(built: Builder, advantage: str) -> None:
    trainer = built(advantage=advantage, max_steps=1)
    steps = Steps(trainer)
    earned: list[float] = []
    trainer.reward_funcs[0] = lambda **columns: earned.extend(letters(**columns)) or earned
    trainer.train()
    ours = group_advantages(0.25 * torch.tensor(earned).view(4, 4), baseline=advantage).flatten()
    used = steps.batches[0]["advantages"]
    torch.testing.assert_close(used.sort().values, ours.sort().values)


@pytest.fixture(scope="module")
def r1_zero(
    sets: GeneratedSets, smoke: Params, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TaggedFormat, Path]:
    """The format, with a closing tag that an untrained model writes by chance, and its base."""
    chosen = prompt_format("r1_zero", tags=("<think>", "</think>", "<answer>", "t"))
    roomy = smoke.model.model_copy(update={"max_seq_length": 512})
    folder = tmp_path_factory.mktemp("r1_zero") / "base"
    write_base(folder, sets.sft, prompt_format=chosen, model=roomy, seed=smoke.seed)
    return chosen, folder


def test_an_r1_zero_step_masks_the_rows_that_ran_into_the_limit_and_no_others(
    built: Builder, r1_zero: tuple[TaggedFormat, Path]
) -> None:
    chosen, folder = r1_zero
    trainer = built(format=chosen, init=folder, max_steps=1, mask_truncated=True)
    steps = Steps(trainer)
    trainer.train()
    batch, pad = steps.batches[0], trainer.processing_class.pad_token_id
    counted = (batch["completion_mask"] * batch["tool_mask"]).bool()
    assert not (batch["completion_ids"][counted] == pad).any()
    finishes = set()
    for ids, generated, row in zip(
        batch["completion_ids"], batch["completion_mask"].bool(), counted, strict=True
    ):
        text = trainer.processing_class.decode(ids[generated], skip_special_tokens=True)
        cut = "t" not in text and trainer.processing_class.eos_token_id not in ids[generated]
        assert row.any() != cut
        assert cut or torch.equal(row, generated)
        before = trainer.processing_class.decode(ids[generated][:-1], skip_special_tokens=True)
        assert "t" not in before  # the token that completes the stop string is the last
        finishes.add(cut)
    assert finishes == {True, False}
    truncated = 1 - counted.any(1).float().mean().item()
    assert curve_points(trainer.state)[0]["completions/clipped_ratio"] == pytest.approx(truncated)
    assert batch["num_items_in_batch"] == counted.sum()


def test_truncated_completions_alone_move_nothing_where_they_are_masked(built: Builder) -> None:
    def weights(**changes: Any) -> list[Tensor]:
        whole = prompt_format("working_out")
        trainer = built(format=whole, max_steps=1, warmup_ratio=0.0, **changes)
        trainer.train()
        assert curve_points(trainer.state)[0]["completions/clipped_ratio"] == 1
        return [weight.detach() for weight in trainer.model.parameters()]

    masked, counted = weights(mask_truncated=True), weights(mask_truncated=False)
    before = list(built().model.parameters())
    assert all(map(torch.equal, masked, before))
    assert not all(map(torch.equal, counted, before))


def test_overlong_punishment_is_the_credit_of_a_step(built: Builder) -> None:
    """16 tokens at most, 8 of them free: DAPO's equation 13."""
    trainer = built(
        advantage="none",
        max_steps=1,
        reward={"extra": ("overlong",), "weights": (0.0, 0.0, 2.0), "overlong_cache_tokens": 8},
    )
    steps = Steps(trainer)
    trainer.train()
    batch = steps.batches[0]
    lengths = batch["completion_mask"].sum(1)
    torch.testing.assert_close(batch["advantages"], -2.0 * (lengths - 8).clamp(min=0) / 8)
    assert lengths.min() < 8 < lengths.max()
    assert curve_points(trainer.state)[0]["rewards/overlong/mean"] < 0


@pytest.mark.parametrize("lora", [True, False])
def test_the_penalty_measures_from_the_checkpoint_that_grpo_starts_from(
    built: Builder, base: Path, smoke: Params, full: Model, tmp_path: Path, lora: bool
) -> None:
    """An adapter starts from the adapter that SFT left, not from the base below it."""
    init = base
    if lora:
        init = tmp_path / "sft"
        policy = add_adapter(load_policy(base, base=base, settings=full), smoke.model.lora)
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight)
        save_policy(policy, load_tokenizer(base), init)
    trainer = built(
        init=init,
        model=smoke.model if lora else full,
        beta=0.1,
        learning_rate=0.02,
        warmup_ratio=0.0,
    )
    trainer.train()
    divergence = [point["kl"] for point in curve_points(trainer.state)]
    assert divergence[0] == pytest.approx(0, abs=1e-5)
    assert divergence[-1] > 1e-3
    save_policy(trainer.model, trainer.processing_class, tmp_path / "grpo")
    assert not [path for path in (tmp_path / "grpo").iterdir() if path.is_dir()]


def test_dropout_of_adapters_is_off_so_that_the_policy_is_the_sampler(
    built: Builder, smoke: Params
) -> None:
    lora = smoke.model.lora.model_copy(update={"dropout": 0.5})
    trainer = built(
        model=smoke.model.model_copy(update={"lora": lora}), learning_rate=0.02, warmup_ratio=0.0
    )
    trainer.train()
    gaps = [point[f"{GAP}/mean"] for point in curve_points(trainer.state)]
    assert len(gaps) == trainer.state.global_step > 0
    assert max(gaps) < 1e-5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "reinforce", "num_iterations": 2}, "num_iterations=2; loss `reinforce`"),
        ({"loss": "reinforce", "importance_level": "sequence"}, "importance_level=sequence"),
    ],
)
def test_reinforce_without_a_ratio_is_refused_where_it_would_need_one(
    smoke: Params, changes: dict[str, Any], message: str
) -> None:
    whole = {**smoke.grpo.model_dump(), "save_steps": 0, "keep_checkpoints": 0, **changes}
    with pytest.raises(ValueError, match=message):
        Grpo.model_validate(whole)


def test_ranks_that_cannot_share_a_step_in_whole_groups_are_refused(
    built: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(UserError, match="prompts_per_step=4: 3 processes cannot share it"):
        built()
