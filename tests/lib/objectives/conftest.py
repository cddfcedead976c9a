import pytest

from tests.lib.objectives.tiny import tiny_model, tiny_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture
def model():
    return tiny_model(0)


@pytest.fixture
def reference_model():
    return tiny_model(1)
