"""Fixtures of the engines' contract."""

import pytest

from lib.engines.policy import load_merged

pytest.register_assert_rewrite("tests.lib.engines.contract")


@pytest.fixture(scope="session")
def plain(base):
    """Load the checkpoint by transformers: logits come from forward passes without a cache."""
    return load_merged(base, base=base, dtype="float32", attention="sdpa").eval()
