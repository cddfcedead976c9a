"""Fixtures that several rooms share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from ruamel.yaml import YAML

from lib.params import Params, compose_preset, parse_params
from lib.params.schema import Model
from lib.problems.generated import GeneratedSets, synthetic_sets
from lib.prompts import prompt_format

ROOT = Path(__file__).parents[1]

# A machine under load is slow, not wrong.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def preset_params(name: str) -> Params:
    return parse_params(YAML(typ="safe").load(compose_preset(name)), origin=name)


@pytest.fixture(scope="session")
def smoke() -> Params:
    """The smoke preset's params."""
    return preset_params("smoke")


@pytest.fixture
def in_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The checkout's root as the working directory."""
    monkeypatch.chdir(ROOT)
    yield ROOT


@pytest.fixture(scope="session")
def sets() -> GeneratedSets:
    """The smoke preset's problems."""
    params = preset_params("smoke")
    return synthetic_sets(params.prepare.synthetic, seed=params.seed)


@pytest.fixture(scope="session")
def base(smoke: Params, sets: GeneratedSets, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizer and random weights of the smoke preset."""
    from lib.engines.tiny import write_base

    folder = tmp_path_factory.mktemp("models") / "base"
    write_base(
        folder,
        sets.sft,
        prompt_format=prompt_format(smoke.prompt.format),
        model=smoke.model,
        seed=smoke.seed,
    )
    return folder


@pytest.fixture(scope="session")
def full(smoke: Params) -> Model:
    """The smoke preset's model section without LoRA."""
    lora = smoke.model.lora.model_copy(update={"rank": 0})
    return smoke.model.model_copy(update={"lora": lora})
