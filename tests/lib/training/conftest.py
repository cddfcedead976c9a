"""A GRPO trainer on the smoke model, for most tests of training."""

from typing import Any

import pytest

from lib.training.grpo.policy_gradient import PolicyGradientTrainer
from tests.lib.training.steps import build, letters, reward_with


@pytest.fixture
def built(sets, base, smoke, full, tmp_path):
    """Build a trainer of all weights, with changes; its reward is letters unless they set one."""

    def builder(*, problems: int | None = None, **changes: Any) -> PolicyGradientTrainer:
        rows = list(sets.grpo)[:problems]
        trainer = build(rows, base, smoke, tmp_path, **{"model": full, **changes})
        return trainer if "reward" in changes else reward_with(trainer, letters)

    return builder
