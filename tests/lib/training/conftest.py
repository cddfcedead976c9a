"""A GRPO trainer on the smoke model, as most tests of training take steps with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lib.params import Params
from lib.params.model import Model
from lib.problems.generated import GeneratedSets
from lib.training.grpo.policy_gradient import PolicyGradientTrainer
from tests.lib.training.steps import build, letters, reward_with


@pytest.fixture
def built(
    sets: GeneratedSets, base: Path, smoke: Params, full: Model, tmp_path: Path
) -> Callable[..., PolicyGradientTrainer]:
    """Builds one that trains all weights, with changes; rewarded for letters unless they say."""

    def builder(*, problems: int | None = None, **changes: Any) -> PolicyGradientTrainer:
        rows = list(sets.grpo)[:problems]
        trainer = build(rows, base, smoke, tmp_path, **{"model": full, **changes})
        return trainer if "reward" in changes else reward_with(trainer, letters)

    return builder
