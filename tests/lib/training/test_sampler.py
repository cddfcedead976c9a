"""The trainer scores under the sampler's distribution, whatever its cuts."""

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import (
    FalconConfig,
    FalconForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
)

from lib.core.errors import UserError
from lib.engines.policy import load_tokenizer, save_policy
from lib.training.grpo import scoring
from lib.training.grpo.policy_gradient import PolicyGradientTrainer
from lib.training.phase.tracking import curve_points
from tests.lib.engines.hub_models import learned_positions, two_ropes
from tests.lib.training.ratios import CUTS, assert_ratios
from tests.lib.training.steps import Steps

CUT = {"top_p": 0.8, "top_k": 50, "min_p": 0.05}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_the_mean_ratio_is_one(built, cut, fused, monkeypatch):
    monkeypatch.setattr(scoring, "MAX_WHOLE_LOGITS", 0 if fused else 2**40)
    assert_ratios(built(), cut)


def test_steps_under_cuts_learn_from_the_cut_distribution(built):
    """The gradient is autograd's, of log-probs over the tokens left by a mask made by hand."""
    trainer = built(max_steps=1, loss="reinforce", rollout=CUT)
    steps = Steps(trainer)
    trainer.train()
    batch = steps.batches[0]
    trainer.model.load_state_dict(steps.weights[0], strict=False)
    trainer.model.zero_grad()
    ids = torch.cat([batch.prompt_ids, batch.completion_ids], 1)
    seen = torch.cat([batch.prompt_mask, batch.completion_mask], 1)
    length = batch.completion_ids.shape[1]
    logits = trainer.model(input_ids=ids, attention_mask=seen).logits[:, -length - 1 : -1]
    probs = logits.detach().softmax(-1)
    left = probs >= 0.05 * probs.amax(-1, keepdim=True)
    left &= logits >= logits.topk(50).values[..., -1:]
    inside = (probs * left / (probs * left).sum(-1, keepdim=True)).sort(-1, descending=True)
    left &= torch.zeros_like(left).scatter(
        -1, inside.indices, inside.values.cumsum(-1) - inside.values < 0.8
    )
    cut = logits.masked_fill(~left, float("-inf")).log_softmax(-1)
    scores = cut.gather(-1, batch.completion_ids[..., None])[..., 0].masked_fill(
        ~batch.loss_mask, 0
    )
    rows = (scores * batch.loss_mask).sum(-1) / batch.loss_mask.sum(-1)
    (-batch.advantages * rows).mean().backward()
    ours = {n: p.grad for n, p in trainer.model.named_parameters() if p.grad is not None}
    largest = max(float(gradient.abs().max()) for gradient in steps.gradients[0].values())
    torch.testing.assert_close(ours, steps.gradients[0], atol=1e-4 * largest, rtol=1e-3)
    point = curve_points(trainer.state)[0]
    assert point["sampling/importance_sampling_ratio/mean"] == pytest.approx(1, abs=1e-4)
    assert point["sampling/effective_sample_share"] == pytest.approx(1, abs=1e-4)
    entropy = -(cut.exp() * cut.masked_fill(~left, 0)).sum(-1)[batch.loss_mask].mean()
    assert point["entropy"] == pytest.approx(entropy.item(), rel=1e-4)


def functional_dropout(**ids: int) -> PreTrainedModel:
    shape = {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 48, "num_hidden_layers": 2}
    dropped = {"dropout": 0.3, "attention_dropout": 0.3, "layerdrop": 0.3}
    return OPTForCausalLM(OPTConfig(**shape, **dropped, num_attention_heads=2, init_std=0.3, **ids))


def dropout_in_config(**ids: int) -> PreTrainedModel:
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    dropped = {"attention_dropout": 0.3, "hidden_dropout": 0.3}
    return FalconForCausalLM(FalconConfig(**shape, **dropped, initializer_range=0.3, **ids))


def based_on(build: Callable[..., PreTrainedModel], base: Path, folder: Path) -> Path:
    """Write the smoke preset's checkpoint with a model of another architecture."""
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    tokenizer = load_tokenizer(base)
    torch.manual_seed(0)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = build(vocab_size=len(tokenizer), bos_token_id=tokenizer.eos_token_id, **ids)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("architecture", [learned_positions, functional_dropout, dropout_in_config])
def test_every_architecture_is_scored_as_it_was_sampled(
    built, base, full, tmp_path,
    architecture, checkpointing,
):  # fmt: skip
    own = based_on(architecture, base, tmp_path / "own")
    model = full.model_copy(update={"gradient_checkpointing": checkpointing})
    trainer = built(init=own, model=model, max_steps=1, beta=0.1, learning_rate=1e-12)
    trainer.train()
    (point,) = curve_points(trainer.state)
    assert point["sampling/sampling_logp_difference/max"] < 1e-4
    assert point["kl"] < 1e-6
    # A saved config has the start's dropout.
    save_policy(trainer.model, trainer.processing_class, tmp_path / "saved")
    configs = [
        json.loads((folder / "config.json").read_text()) for folder in (own, tmp_path / "saved")
    ]
    started, saved = ({n: v for n, v in each.items() if "drop" in n} for each in configs)
    assert saved == started != {}


def test_grpo_beyond_a_longropes_switch_is_refused(built, base, tmp_path):
    switching = functools.partial(two_ropes, switch=64)
    with pytest.raises(UserError, match=r"max_seq_length=256.* 64 "):
        built(init=based_on(switching, base, tmp_path / "own"))


def test_a_steered_coefficient_is_part_of_a_checkpoint(built):
    def run(steps: int, resume: Path | None = None) -> PolicyGradientTrainer:
        trainer = built(max_steps=steps, save_steps=2, entropy_coef=0.1, entropy_target=99.0)
        trainer.train(resume_from_checkpoint=resume and str(resume))
        return trainer

    whole = run(4)
    checkpoint = Path(whole.args.output_dir) / "checkpoint-2"
    saved = json.loads((checkpoint / "trainer_state.json").read_text())
    kept = saved["stateful_callbacks"]["SavedCoefficient"]["attributes"]
    assert kept["coefficient"] == pytest.approx(0.11)
    resumed = run(4, checkpoint)
    assert resumed.bonus == whole.bonus
    assert resumed.bonus.coefficient == pytest.approx(0.12)
