"""Fixtures of the engines' contract."""

import pytest

from lib.models.load import add_adapter, load_merged, load_policy
from lib.models.pretrained import load_tokenizer
from lib.models.save import save_policy
from lib.params.model import Model

pytest.register_assert_rewrite("tests.lib.engines.contract")


@pytest.fixture(scope="session")
def plain(base):
    """Load the checkpoint by transformers: logits come from forward passes without a cache."""
    return load_merged(base, base=base, dtype="float32", attention="sdpa").eval()


@pytest.fixture(scope="session")
def model_named(smoke):
    """Validate the smoke preset's `model` with another name, revision and other changes."""

    def changed(name, revision="", **changes):
        content = smoke.model.model_dump() | {"name": name, "revision": revision} | changes
        return Model.model_validate(content)

    return changed


@pytest.fixture
def adapter_checkpoint(base, smoke, tmp_path):
    """Save a policy with a moved adapter; return its folder and the policy."""
    from tests.lib.models.log_prob_gap import moved

    policy = add_adapter(load_policy(base, base=base, settings=smoke.model), smoke.model.lora)
    save_policy(moved(policy), load_tokenizer(base), tmp_path / "sft")
    return tmp_path / "sft", policy
