"""The trainer scores under the sampler's distribution, whatever its cuts."""

import functools
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

from lib.artifacts import read_json
from lib.core.errors import UserError
from lib.models.pretrained import load_tokenizer
from lib.models.save import save_policy
from tests.lib.models.hub_models import learned_positions, two_ropes
from tests.lib.objectives.losses import assert_gradients, gradients_of, loss_of
from tests.lib.training.ratios import CUTS, assert_ratios
from tests.lib.training.steps import (
    completion_log_probs,
    completion_logits,
    train,
    train_steps,
)

CUT = {"top_p": 0.8, "top_k": 50, "min_p": 0.05}


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_the_mean_ratio_is_one(built, cut, logits):
    assert_ratios(built(), cut)


def test_steps_under_cuts_learn_from_the_cut_distribution(built):
    """The gradient is autograd's, of log-probs over the tokens left by a mask made by hand."""
    trainer = built(max_steps=1, loss="reinforce", rollout=CUT)
    steps = train_steps(trainer)
    batch = steps.batches[0]
    trainer.model.load_state_dict(steps.weights[0], strict=False)
    logits = completion_logits(trainer.model, batch)
    probs = logits.detach().softmax(-1)
    left = probs >= 0.05 * probs.amax(-1, keepdim=True)
    left &= logits >= logits.topk(50).values[..., -1:]
    inside = (probs * left / (probs * left).sum(-1, keepdim=True)).sort(-1, descending=True)
    left &= torch.zeros_like(left).scatter(
        -1, inside.indices, inside.values.cumsum(-1) - inside.values < 0.8
    )
    cut = logits.masked_fill(~left, float("-inf"))
    scores = completion_log_probs(cut, batch)
    loss = loss_of(scores, batch.advantages, batch.loss_mask, loss="reinforce").loss
    assert_gradients(gradients_of(trainer.model, loss), steps.gradients[0], within=1e-4)
    point = steps.points[0]
    for column in ("importance_sampling_ratio/mean", "effective_sample_share"):
        assert point[f"sampling/{column}"] == pytest.approx(1, abs=1e-4)
    logs = cut.log_softmax(-1)
    entropy = -(logs.exp() * logs.masked_fill(~left, 0)).sum(-1)[batch.loss_mask].mean()
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


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("architecture", [learned_positions, functional_dropout, dropout_in_config])
def test_every_architecture_is_scored_as_it_was_sampled(
    built, base, tmp_path, architecture, checkpointing
):
    own = based_on(architecture, base, tmp_path / "own")
    model = {"gradient_checkpointing": checkpointing}
    trainer = built(init=own, model=model, max_steps=1, beta=0.1, learning_rate=1e-12)
    (point,) = train(trainer)
    assert point["sampling/sampling_logp_difference/mean"] < 1e-5
    assert point["kl"] < 1e-6
    # A saved config has the start's dropout.
    save_policy(trainer.model, trainer.processing_class, tmp_path / "saved")
    configs = [read_json(folder / "config.json") for folder in (own, tmp_path / "saved")]
    started, saved = ({n: v for n, v in each.items() if "drop" in n} for each in configs)
    assert saved == started != {}


def test_grpo_beyond_a_longropes_switch_is_refused(built, base, tmp_path):
    switching = functools.partial(two_ropes, switch=64)
    with pytest.raises(UserError, match=r"max_seq_length=256.* 64 "):
        built(init=based_on(switching, base, tmp_path / "own"))
