"""vLLM in this process: the contract, the policy's weights after a sync, and what is given back."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from lib.engines import compat
from lib.engines.open import open_engine
from lib.engines.policy import add_adapter, load_policy, load_tokenizer, save_policy
from lib.engines.vllm import VllmEngine
from lib.errors import UserError
from lib.params import Params
from lib.params.schema import Model
from tests.lib.engines.contract import EngineContract, drawn, logits_of

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def engine(base: Path):
    """On the base model, ready for full weights."""
    opened = VllmEngine(
        base,
        load_tokenizer(base),
        dtype="float32",
        max_seq_length=256,
        batch_size=64,
        receives_weights=True,
    )
    yield opened
    opened.close()


def moved(policy: PreTrainedModel, *, by: float = 0.3) -> PreTrainedModel:
    """The policy after a large step of training."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter += by * noise * (parameter.std() if parameter.any() else 0.3)
    return policy.eval()


def gap(engine, policy: PreTrainedModel, prompts: list[list[int]]) -> float:
    """Largest difference between the engine's log-probs and those of `policy`."""
    groups = engine.generate(prompts, drawn(temperature=0.9, log_probs=True))
    differences = [
        (
            (logits_of(policy, prompt, completion.token_ids) / 0.9)
            .log_softmax(-1)
            .gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0]
            - torch.tensor(completion.log_probs)
        )
        .abs()
        .max()
        .item()
        for prompt, group in zip(prompts, groups, strict=True)
        for completion in group
    ]
    return max(differences)


class TestContract(EngineContract):
    pass


def test_full_weights_are_the_policys_after_each_sync_and_the_old_ones_before(
    engine: VllmEngine, base: Path, full: Model, prompts: list[list[int]]
) -> None:
    start = load_policy(base, base=base, settings=full)
    policy = load_policy(base, base=base, settings=full)
    for _ in range(2):
        moved(policy)
        assert gap(engine, policy, prompts) > 0.1
        engine.sync(policy)
        assert gap(engine, policy, prompts) < 1e-4
    engine.sync(start)
    assert gap(engine, start.eval(), prompts) < 1e-4


def test_an_adapter_is_the_policys_after_each_sync_and_the_old_one_before(
    base: Path, smoke: Params, prompts: list[list[int]], tmp_path: Path
) -> None:
    policy = moved(
        add_adapter(load_policy(base, base=base, settings=smoke.model), smoke.model.lora)
    )
    save_policy(policy, load_tokenizer(base), tmp_path / "sft")
    opened = open_engine(
        "vllm", tmp_path / "sft", base=base, model=smoke.model, batch_size=8, policy=policy
    )
    try:
        assert gap(opened, policy, prompts) < 1e-4
        for _ in range(2):
            moved(policy)
            assert gap(opened, policy, prompts) > 0.1
            opened.sync(policy)
            assert gap(opened, policy, prompts) < 1e-4
    finally:
        opened.close()


def test_the_process_is_left_as_it_was(
    engine: VllmEngine, base: Path, smoke: Params, prompts: list[list[int]]
) -> None:
    def state() -> tuple[object, ...]:
        numbers = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
        return (*numbers, torch.set_num_threads, torch.get_num_threads(), torch.get_default_dtype())

    before = state()
    opened = open_engine("vllm", base, base=base, model=smoke.model, batch_size=8)
    assert state() == before
    opened.close()
    assert state() == before
    opened.close()
    assert engine.generate(prompts, drawn())  # one engine's end is not another's


def test_heads_without_a_kernel_are_refused_in_one_line(
    base: Path, smoke: Params, tmp_path: Path
) -> None:
    odd = load_policy(base, base=base, settings=smoke.model)
    odd.config.head_dim = 24
    odd.config.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"no attention for head_dim=24 of .*; expected one of 32"):
        open_engine("vllm", tmp_path, base=base, model=smoke.model, batch_size=8)


def test_the_repairs_stand_where_they_are_said_to_be() -> None:
    """A new vLLM may have moved them, or need them no longer."""
    compat.prepare_vllm()
    import inspect

    from vllm.model_executor.layers import utils
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.worker import cpu_worker

    gemm = inspect.getsource(utils)
    assert "def dispatch_cpu_unquantized_gemm(\n    layer: torch.nn.Module,\n    remove_weight" in gemm
    assert {"logits", "sampling_metadata"} <= set(inspect.signature(Sampler.forward).parameters)
    assert "torch.set_num_threads = skip_set_num_threads" in inspect.getsource(cpu_worker)
