"""vLLM in this process: the contract, the policy's weights after a sync, and what is given back."""

from pathlib import Path

import pytest

from lib.engines.policy import load_tokenizer
from lib.engines.vllm import VllmEngine
from tests.lib.engines.contract import EngineContract

pytestmark = pytest.mark.vllm


def engine_on(base: Path, **changes) -> VllmEngine:
    settings = {"dtype": "float32", "max_seq_length": 256, "batch_size": 64} | changes
    return VllmEngine(base, load_tokenizer(base), **settings)


@pytest.fixture(scope="module")
def opened(base: Path):
    engine = engine_on(base, receives_weights=True)
    yield engine
    engine.close()


class TestContract(EngineContract):
    @pytest.fixture
    def engine(self, opened: VllmEngine) -> VllmEngine:
        return opened
