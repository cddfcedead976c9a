"""Attack by training at smoke size: train a policy against the verifier, search its rollouts."""

import pytest

from bench.verifier.attack_by_training import false_rewards
from bench.verifier.references import rows_of
from tests.pipeline.test_end_to_end import clone_with_smoke

pytestmark = pytest.mark.slow


def test_a_policy_trained_at_smoke_size_earns_nothing_falsely(tmp_path):
    clone = clone_with_smoke(tmp_path / "reckon")
    clone.change(
        grpo={"max_steps": 9, "beta": 0.0, "eval_steps": 0, "log_problems": 4},
        reward={"stack": "tiny", "extra": [], "weights": [0.25, 1.0]},
    )
    clone.dvc("repro", "grpo")
    rows = rows_of(clone.folder / "data/rollouts/grpo.jsonl")
    assert len(rows) == 9 * 4 * 4
    assert false_rewards(rows) == []
    assert f"{len(rows)} rollouts" in clone.python("bench.verifier.attack_by_training")
