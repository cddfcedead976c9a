"""The trainer's probability of an engine's tokens, under each cut of the distribution."""

import dataclasses
from typing import Any

import pytest
import torch

from lib.training.grpo.policy_gradient import PolicyGradientTrainer
from lib.training.grpo.scoring import Scorer

CUTS = [
    {},
    {"temperature": 0.7},
    {"top_p": 0.9},
    {"top_k": 20},
    {"min_p": 0.1},
    {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
    {"temperature": 1.3, "top_p": 0.8, "top_k": 50, "min_p": 0.05},
]


def assert_ratios(trainer: PolicyGradientTrainer, cut: dict[str, Any]):
    """Assert a trainer-to-sampler ratio of 1 at every token, and below 1 without the cuts.

    Over one generation of rollouts, at the policy's weights.
    """
    uncut = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
    trainer.sampling = dataclasses.replace(trainer.sampling, **{"temperature": 1.0, **uncut, **cut})
    batches = trainer.roll_out()

    def ratio(sampling) -> torch.Tensor:
        scorer = Scorer(trainer.model, sampling=sampling, shares_prompts=True)
        with torch.no_grad():
            scored = [scorer.score(trainer.model, batch).log_probs for batch in batches]
        gaps = [
            (scores - batch.sampler_log_probs)[batch.completion_mask.bool()]
            for scores, batch in zip(scored, batches, strict=True)
        ]
        return torch.cat(gaps).exp()

    inside = ratio(trainer.sampling)
    assert len(inside) > 40
    assert inside.mean() == pytest.approx(1, abs=0.002)
    assert (inside - 1).abs().max() < 1e-3
    if set(cut) - {"temperature"}:
        assert ratio(dataclasses.replace(trainer.sampling, **uncut)).mean() < 0.97
