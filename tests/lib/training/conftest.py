"""A GRPO trainer on the smoke model, for most tests of training."""

import pytest

from tests.lib.training.steps import build, letters, reward_with


@pytest.fixture
def server(vllm_url, monkeypatch):
    """Let a vLLM server of the base model serve this process and those it starts."""
    monkeypatch.setenv("RECKON_VLLM_URL", vllm_url)
    return vllm_url


@pytest.fixture(params=["fused", "whole"])
def logits(request, monkeypatch):
    """Score completions from fused logits, or from whole ones."""
    largest = 0 if request.param == "fused" else 2**40
    monkeypatch.setattr("lib.training.grpo.scoring.MAX_WHOLE_LOGITS", largest)


@pytest.fixture
def built(sets, base, smoke, full, tmp_path):
    """Build a trainer with changes: of all weights without `lora`, rewarding letters unless set."""

    def builder(*, problems=None, lora=False, model=None, **changes):
        rows, own = list(sets.grpo)[:problems], smoke.model if lora else full
        model = own.model_copy(update=model)
        trainer = build(rows, base, smoke, tmp_path, model=model, **changes)
        return trainer if "reward" in changes else reward_with(trainer, letters)

    return builder
