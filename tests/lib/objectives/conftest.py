import pytest
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from tests.lib.objectives.tiny import tiny_model, tiny_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return tiny_tokenizer()


@pytest.fixture
def model() -> Qwen3ForCausalLM:
    return tiny_model(0)


@pytest.fixture
def reference_model() -> Qwen3ForCausalLM:
    return tiny_model(1)
