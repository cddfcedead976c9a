"""How likely the trainer finds what an engine sampled, under each cut of the distribution."""

import dataclasses
from typing import Any

import torch

from lib.training.grpo.policy_gradient import PolicyGradientTrainer
from lib.training.grpo.scoring import Scorer

CUTS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"top_p": 0.9},
    {"top_k": 20},
    {"min_p": 0.1},
    {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
    {"temperature": 1.3, "top_p": 0.8, "top_k": 50, "min_p": 0.05},
]


@dataclasses.dataclass(frozen=True)
class Ratios:
    """Trainer's to sampler's probability of the sampled tokens.

    Attributes:
        mean: over the tokens, of a trainer that scores under the sampler's cuts.
        uncut: the same of one that scores the whole softmax at the temperature.
        farthest: from 1, of a token.
    """

    mean: float
    uncut: float
    farthest: float


def ratios(trainer: PolicyGradientTrainer, cut: dict[str, Any]) -> Ratios:
    """Of one generation of rollouts, at the policy's weights."""
    plain = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    trainer.sampling = dataclasses.replace(trainer.sampling, **plain | cut)
    uncut = dataclasses.replace(trainer.sampling, top_p=1.0, top_k=0, min_p=0.0)
    batches = trainer.roll_out()

    def of(sampling: Any) -> torch.Tensor:
        scorer = Scorer(trainer.model, sampling=sampling, shares_prompts=True)
        with torch.no_grad():
            scored = [scorer.score(trainer.model, batch).log_probs for batch in batches]
        return torch.cat(
            [
                (scores - batch.sampler_log_probs)[batch.completion_mask.bool()].exp()
                for scores, batch in zip(scored, batches, strict=True)
            ]
        )

    inside = of(trainer.sampling)
    assert len(inside) > 100
    return Ratios(
        mean=inside.mean().item(),
        uncut=of(uncut).mean().item(),
        farthest=(inside - 1).abs().max().item(),
    )
