"""Attack by training at smoke size: train a policy against the verifier, search its rollouts."""

import sys

import pytest
from dvc.utils.serialize import modify_yaml

from tests.bench.verifier.attack_by_training import false_rewards, read_rollouts
from tests.pipeline.test_end_to_end import clone_with_smoke

pytestmark = pytest.mark.slow


def test_a_policy_trained_at_smoke_size_earns_nothing_falsely(tmp_path):
    clone = clone_with_smoke(tmp_path / "reckon")
    with modify_yaml(clone.folder / "params.yaml") as params:
        params["grpo"] |= {"max_steps": 9, "beta": 0.0, "eval_steps": 0}
        params["reward"] |= {"stack": "tiny", "extra": [], "weights": [0.25, 1.0]}
    for command in ("stages.prepare", "stages.sft", "tests.bench.verifier.attack_by_training"):
        out = ("rollouts.jsonl.gz",) if command.endswith("training") else ()
        printed = clone.run(sys.executable, "-m", command, *out)
    rows = read_rollouts(clone.folder / "rollouts.jsonl.gz")
    assert len(rows) == 9 * 4 * 4
    assert false_rewards(rows) == []
    assert f"{len(rows)} rollouts" in printed
