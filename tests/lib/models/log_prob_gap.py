"""Distance of an engine's log-probs from its policy's."""

import torch
from transformers import PreTrainedModel

from lib.engines.base import Engine
from tests.lib.engines.contract import logits_of, random_sampling


def moved(policy: PreTrainedModel, *, by: float = 0.3) -> PreTrainedModel:
    """Move the policy as by a large step of training."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter += by * noise * (parameter.std() if parameter.any() else 0.3)
    return policy.eval()


def assert_follows(engine: Engine, policy: PreTrainedModel, prompts: list[list[int]]) -> None:
    """Assert that the engine generates from the last synced policy, and from nothing else."""
    for _ in range(2):
        moved(policy)
        assert gap(engine, policy, prompts) > 0.1
        engine.sync(policy)
        assert gap(engine, policy, prompts) < 1e-4


def gap(engine: Engine, policy: PreTrainedModel, prompts: list[list[int]]) -> float:
    """Return the largest difference between the engine's log-probs and the policy's."""
    groups = engine.generate(prompts, random_sampling(temperature=0.9, log_probs=True))
    gaps = []
    for prompt, group in zip(prompts, groups, strict=True):
        for completion in group:
            log_probs = (logits_of(policy, prompt, completion.token_ids) / 0.9).log_softmax(-1)
            own = log_probs.gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0]
            gaps.append((own - torch.tensor(completion.log_probs)).abs().max().item())
    return max(gaps)
